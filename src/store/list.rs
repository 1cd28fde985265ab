//! ListObjectsV2, page by page.
//!
//! A listing always terminates: the keys of every page must sort after those of the previous one, and the number of
//! consecutive empty pages is limited. Keys are requested with `encoding-type=url`.

use aws_sdk_s3::types::{EncodingType, Object as S3Object};
use percent_encoding::percent_decode_str;
use tracing::instrument;

use super::bucket::Store;
use super::clients::Clients;
use super::failure::{Failure, corrupt};
use super::object::{Meta, length};
use super::send::{ReadTarget, Sending};
use crate::cache::Passed;
use crate::entry::Depth;
use crate::error::{Error, Result};
use crate::mount::{KeyPrefix, ObjectKey};

/// A paginated listing of a prefix.
#[derive(Debug)]
pub(crate) struct Lister {
    prefix: KeyPrefix,
    depth: Depth,
    max_keys: Option<i32>,
    token: Option<String>,
    done: bool,
    last_key: Option<String>,
    empty_pages: u32,
}

/// S3 may send empty pages with a continuation token. More consecutive ones than this are an error.
const MAX_EMPTY_PAGES: u32 = 100;

impl Lister {
    pub(crate) fn new(prefix: &KeyPrefix, depth: Depth) -> Self {
        Self {
            depth,
            max_keys: None,
            token: None,
            // A prefix that is longer than the longest key matches nothing.
            done: !prefix.can_have_keys(),
            last_key: None,
            empty_pages: 0,
            prefix: prefix.clone(),
        }
    }

    /// Returns the next page in key order; `None` after the last one. Usually one request.
    pub(crate) async fn next(&mut self, store: &Store) -> Result<Option<Vec<Listed>>> {
        while !self.done {
            let token = self.token.take();
            let (items, next) = store.list(self.prefix.as_str(), self.depth, self.max_keys, token).await?;
            self.done = next.is_none();
            self.token = next;
            if let (Some(first), Some(last)) = (items.first(), items.last()) {
                if self.last_key.as_deref().is_some_and(|known| first.key() <= known) {
                    return Err(corrupt("the storage returned the same keys twice"));
                }
                self.last_key = Some(last.key().to_owned());
                self.empty_pages = 0;
                return Ok(Some(items));
            }
            self.empty_pages += 1;
            if self.empty_pages > MAX_EMPTY_PAGES {
                return Err(corrupt("the storage returns empty pages without end"));
            }
        }
        Ok(None)
    }

    /// Returns all items. One request per 1,000 items.
    pub(crate) async fn all(mut self, store: &Store) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        while let Some(page) = self.next(store).await? {
            all.extend(page);
        }
        Ok(all)
    }
}

/// An item of a listing.
#[derive(Debug)]
pub(crate) enum Listed {
    Object { key: String, meta: Meta },
    Prefix(String),
}

impl Listed {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Object { key, .. } | Self::Prefix(key) => key,
        }
    }
}

impl Store {
    /// Returns the keys of the first 1,000 incomplete multipart uploads. One request.
    pub(crate) async fn unfinished_uploads(&self, prefix: &KeyPrefix) -> Result<Vec<String>> {
        let send = |clients: &Clients| -> Sending<_, _> {
            let request = clients.client.list_multipart_uploads();
            Box::pin(request.bucket(&*clients.bucket).prefix(prefix.as_str()).send())
        };
        let found = self.unhedged(&[prefix.as_str()], send).await.map_err(|error| self.fail(error))?;
        Ok(found.uploads.unwrap_or_default().into_iter().filter_map(|upload| upload.key).collect())
    }

    /// Returns whether any key starts with a prefix. One request.
    pub(crate) async fn lists_any(&self, prefix: &KeyPrefix) -> Result<bool> {
        let mut lister = Lister { max_keys: Some(1), ..Lister::new(prefix, Depth::All) };
        Ok(lister.next(self).await?.is_some())
    }

    /// Returns whether a listing contains a key. One request.
    pub(crate) async fn lists(&self, key: &ObjectKey) -> Result<bool> {
        let (items, _) = self.list(key.as_str(), Depth::All, Some(1), None).await?;
        Ok(items.first().is_some_and(|item| item.key() == key.as_str()))
    }

    /// Returns whether a denied request was about a key that does not exist. Without permission to list the bucket, S3
    /// answers 403 for a missing key. One LIST of the key decides.
    pub(super) async fn is_missing(&self, key: &ObjectKey, failure: &Failure) -> Result<bool> {
        let route = self.route(&[key.as_str()]);
        if !route.is_scoped() || !failure.may_mean_missing() {
            return Ok(false);
        }
        // Taken before the listing: the evidence must belong to credentials that are no newer than the request.
        let (_, granted) = route.clients().await.map_err(|failure| self.fail(failure))?;
        let listed = self.lists(key).await;
        // Both the read and the listing were denied.
        if listed.as_ref().is_err_and(Error::is_forbidden) {
            route.refused(key.as_str(), Passed::Read);
        }
        let missing = !listed?;
        if let Some(granted) = granted.filter(|_| missing) {
            granted.evidence.record(key.as_str(), Passed::Missing, true);
        }
        Ok(missing)
    }

    /// Sends one ListObjectsV2. Returns a page in key order and the continuation token.
    #[instrument(level = "debug", skip_all, fields(prefix, ?depth))]
    async fn list(
        &self,
        prefix: &str,
        depth: Depth,
        max_keys: Option<i32>,
        token: Option<String>,
    ) -> Result<(Vec<Listed>, Option<String>)> {
        let requested = prefix.to_owned();
        let send = move |clients: &Clients| -> Sending<_, _> {
            let request = clients
                .client
                .list_objects_v2()
                .bucket(&*clients.bucket)
                .prefix(&requested)
                .set_delimiter((depth == Depth::One).then(|| "/".to_owned()))
                // A control character in one key would make the XML of the entire page invalid.
                .encoding_type(EncodingType::Url)
                .set_max_keys(max_keys)
                .set_continuation_token(token.clone());
            Box::pin(request.send())
        };
        let about = ReadTarget { key: prefix, how: Passed::List, hedge: |hedges| &hedges.list };
        // Boxed to keep the futures of callers small.
        let page = Box::pin(self.hedged(about, send)).await;
        let page = page.map_err(|error| self.fail_at(prefix, Passed::List, error))?;
        let encoded = page.encoding_type.is_some();
        let decode = |key: String| if encoded { decode_listed(&key) } else { Ok(key) };
        let mut items = Vec::new();
        for object in page.contents.unwrap_or_default() {
            let S3Object { key: Some(key), size, last_modified, e_tag, .. } = object else { continue };
            let meta = Meta::from_headers(length(size)?, last_modified, e_tag);
            items.push(Listed::Object { key: decode(key)?, meta });
        }
        for prefix in page.common_prefixes.unwrap_or_default().into_iter().filter_map(|common| common.prefix)
        {
            items.push(Listed::Prefix(decode(prefix)?));
        }
        items.sort_by(|a, b| a.key().cmp(b.key()));
        let next = match (page.is_truncated, page.next_continuation_token) {
            (Some(true), None) => {
                return Err(corrupt("the storage truncated a listing without a continuation token"));
            }
            // Some servers omit `IsTruncated`; a continuation token alone also means that there are more pages.
            (Some(true) | None, next) => next,
            _ => None,
        };
        Ok((items, next))
    }
}

/// Decodes a key of a listing. S3 encodes a space as `+` and a plus as `%2B`; other servers encode both as `%xx`.
pub(super) fn decode_listed(key: &str) -> Result<String> {
    percent_decode_str(&key.replace('+', " "))
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| corrupt("the storage listed a key that is not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn listed_keys_are_decoded() {
        let check = |encoded: &str, key: &str| assert_eq!(decode_listed(encoded).unwrap(), key);
        check("a+b", "a b");
        check("a%20b", "a b");
        check("a%2Bb", "a+b");
        check("100%25.md", "100%.md");
        check("%C3%A9/%F0%9F%A6%80", "é/🦀");
        check("a%01b", "a\u{1}b");
        for listed in ["%ff", "%c0%ae%c0%ae/x", "%ed%a0%80", "a%80", "%f4%90%80%80"] {
            assert_eq!(decode_listed(listed).unwrap_err().kind(), ErrorKind::Corrupt, "{listed}");
        }
    }
}
