//! The fundamental checks: endpoint, bucket, region, credentials and clock. Also versioning, which the same
//! response reports.

use super::{Check, address};
use crate::error::{CredentialsFault, Error, Hint, shorten};
use crate::store::{Heard, Reason, Store, Trouble, Versioning};

/// Clock skew in seconds that causes a warning or an error. S3 tolerates at most 15 minutes.
const CLOCK_WARNING: i64 = 60;
const CLOCK_WRONG: i64 = 5 * 60;
/// Skew below this is not reported: responses take time, and their dates have whole seconds.
const CLOCK_EXACT: i64 = 5;

pub(super) struct Ground {
    pub(super) checks: Vec<Check>,
    pub(super) versioning: Check,
    /// Why the remaining checks are skipped, if they are.
    pub(super) stop: Option<&'static str>,
}

pub(super) async fn look(store: &Store) -> Ground {
    let (versions, mut heard) = store.versioning().await;
    let (mut trouble, mut may_ask) = (None, true);
    let versioning = match versions {
        Ok(told) => versioning(store, &heard, told),
        // The response does not say whether the bucket exists, so send another request.
        Err(Trouble { reason: reason @ (Reason::Refused | Reason::NotImplemented), .. }) => {
            let (there, more) = store.head_bucket().await;
            heard.bucket_region = more.bucket_region.or(heard.bucket_region);
            heard.ahead = heard.ahead.or(more.ahead);
            match there {
                Ok(()) => {}
                Err(Trouble { reason: Reason::Refused, .. }) => may_ask = false,
                Err(other) => trouble = Some(other),
            }
            Check::note(
                "versioning",
                match reason {
                    Reason::Refused => "these credentials may not read whether versioning is on",
                    _ if store.is_embedded() => "the embedded store keeps no older versions of files",
                    _ => "this server does not report whether versioning is on",
                },
            )
        }
        Err(other) => {
            trouble = Some(other);
            Check::skipped("versioning", "")
        }
    };
    let stop = trouble.as_ref().map(|trouble| because(&trouble.reason));
    let versioning = stop.map_or(versioning, |why| Check::skipped("versioning", why));
    let trouble = trouble.as_ref().map(|trouble| (&trouble.reason, &trouble.error));
    let checks = vec![
        endpoint(store, trouble),
        bucket(store, &heard, trouble, may_ask),
        region(store, &heard, trouble),
        credentials(store, &heard, trouble),
        clock(store, &heard, trouble),
    ];
    Ground { checks, versioning, stop }
}

/// The failure that makes the remaining checks impossible.
type Stop<'t> = Option<(&'t Reason, &'t Error)>;

/// Why the remaining checks are skipped.
fn because(reason: &Reason) -> &'static str {
    match reason {
        Reason::NoCredentials => "there are no credentials",
        Reason::UnknownKey | Reason::BadSignature | Reason::Expired | Reason::BadToken => {
            "the credentials are not accepted"
        }
        Reason::Skewed => "the storage refuses all requests while the clock is wrong",
        Reason::OtherRegion(_) => "the region is wrong",
        Reason::NoBucket | Reason::BadBucketName => "there is no bucket",
        Reason::Unreachable => "the storage cannot be reached",
        Reason::Timeout => "the storage does not respond",
        _ => "the storage does not respond like S3",
    }
}

fn endpoint(store: &Store, trouble: Stop<'_>) -> Check {
    match trouble {
        Some((reason @ Reason::NoCredentials, _)) => Check::skipped("endpoint", because(reason)),
        Some((
            Reason::Unreachable
            | Reason::Timeout
            | Reason::NotS3
            | Reason::Missing
            | Reason::Condition
            | Reason::BehindTheEnd
            | Reason::Other,
            error,
        )) => Check::failed("endpoint", error),
        _ if store.is_embedded() => Check::good("endpoint", "the embedded store, in this process"),
        _ => match store.endpoint() {
            Some(url) => Check::good("endpoint", format!("`{}` responds", shorten(url))),
            None => Check::good("endpoint", "AWS S3 responds"),
        },
    }
}

fn bucket(store: &Store, heard: &Heard, trouble: Stop<'_>, may_ask: bool) -> Check {
    let name = store.name();
    match trouble {
        Some((Reason::NoBucket, _)) => Check::wrong("bucket", format!("the bucket `{name}` does not exist"))
            .fix(Hint::CreateBucket(address(store, heard.region.as_deref()))),
        Some((Reason::BadBucketName, error)) => Check::failed("bucket", error),
        Some((Reason::OtherRegion(_), _)) => {
            Check::good("bucket", format!("`{name}` exists, in another region"))
        }
        Some((reason, _)) => Check::skipped("bucket", because(reason)),
        None if may_ask => Check::good("bucket", format!("`{name}` exists")),
        None => {
            Check::note("bucket", format!("`{name}` exists; these credentials may not read its settings"))
        }
    }
}

fn region(store: &Store, heard: &Heard, trouble: Stop<'_>) -> Check {
    let asked = heard.region.as_deref().unwrap_or("?");
    match trouble {
        Some((Reason::OtherRegion(Some(region)), _)) => {
            Check::wrong("region", format!("the bucket is in `{region}`, but the region is set to `{asked}`"))
                .fix(Hint::SetRegion { region: Some(region.clone()), bucket: address(store, None) })
        }
        Some((Reason::OtherRegion(None), _)) => {
            Check::wrong("region", format!("the bucket is in another region than `{asked}`"))
                .fix(Hint::SetRegion { region: None, bucket: address(store, None) })
        }
        Some((reason, _)) => Check::skipped("region", because(reason)),
        None if store.is_embedded() => Check::good("region", "the embedded store has none"),
        None => match &heard.bucket_region {
            Some(region) if region != asked => Check::note(
                "region",
                format!("the bucket reports the region `{region}`; requests to `{asked}` work, too"),
            ),
            _ => Check::good("region", format!("`{asked}`")),
        },
    }
}

fn credentials(store: &Store, heard: &Heard, trouble: Stop<'_>) -> Check {
    let key = heard.key_end.as_ref().map_or("the access key".to_owned(), |end| format!("access key …{end}"));
    let wrong = |found: String, fault| Check::wrong("credentials", found).fix(Hint::FixCredentials(fault));
    match trouble {
        Some((Reason::NoCredentials, error)) => Check::failed("credentials", error),
        Some((Reason::UnknownKey, _)) => {
            wrong(format!("the storage does not know {key}"), CredentialsFault::UnknownKey)
        }
        Some((Reason::BadSignature, _)) => {
            wrong(format!("the secret does not belong to {key}"), CredentialsFault::WrongSecret)
        }
        Some((Reason::Expired, _)) => {
            wrong(format!("the temporary credentials with {key} have expired"), CredentialsFault::Expired)
        }
        Some((Reason::BadToken, _)) => {
            wrong(format!("the session token does not belong to {key}"), CredentialsFault::WrongToken)
        }
        // S3 checks the credentials before it looks up the bucket.
        None | Some((Reason::NoBucket, _)) if store.is_embedded() => {
            Check::good("credentials", "the embedded store's own")
        }
        None | Some((Reason::NoBucket, _)) => {
            let kind = if heard.temporary { "temporary" } else { "permanent" };
            Check::good("credentials", format!("{key}, {kind}"))
        }
        Some((reason, _)) => Check::skipped("credentials", because(reason)),
    }
}

fn clock(store: &Store, heard: &Heard, trouble: Stop<'_>) -> Check {
    const SET: Hint = Hint::SetClock;
    let refused = matches!(trouble, Some((Reason::Skewed, _)));
    match (heard.ahead, trouble) {
        // The date in a proxy's error page is the proxy's.
        (_, Some((reason @ (Reason::NotS3 | Reason::Other), _))) => Check::skipped("clock", because(reason)),
        (None, _) if refused => {
            Check::wrong("clock", "this machine's clock is wrong, so the storage refuses requests").fix(SET)
        }
        (None, Some((reason, _))) => Check::skipped("clock", because(reason)),
        (None, None) if store.is_embedded() => Check::good("clock", "this machine's own"),
        (None, None) => Check::note("clock", "the storage does not report its time"),
        (Some(ahead), _) => {
            let off = ahead.saturating_abs();
            let way = if ahead > 0 { "behind" } else { "ahead of" };
            let found = format!("this machine's clock is {} {way} the storage's", roughly(off));
            match off {
                _ if refused || off > CLOCK_WRONG => Check::wrong("clock", found).fix(SET),
                _ if off > CLOCK_WARNING => Check::warning("clock", found).fix(SET),
                _ if off > CLOCK_EXACT => Check::good("clock", found),
                _ => Check::good("clock", "within 5 seconds of the storage's"),
            }
        }
    }
}

/// Formats a duration in a readable unit.
fn roughly(seconds: i64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let seconds = seconds.unsigned_abs();
    let (unit, name) = match seconds {
        0..90 => (1, "second"),
        90..5_400 => (MINUTE, "minute"),
        5_400..172_800 => (HOUR, "hour"),
        _ => (DAY, "day"),
    };
    let count = (seconds + unit / 2) / unit;
    let (about, plural) = (if unit == 1 { "" } else { "about " }, if count == 1 { "" } else { "s" });
    format!("{about}{count} {name}{plural}")
}

fn versioning(store: &Store, heard: &Heard, told: Versioning) -> Check {
    let lost = match told {
        Versioning::Enabled => {
            return Check::good("versioning", "on: what is overwritten or deleted can be restored");
        }
        Versioning::Suspended => "suspended: what is overwritten or deleted from now on is lost",
        Versioning::Off => "off: what is overwritten or deleted is lost",
    };
    Check::note("versioning", lost).fix(Hint::EnableVersioning(address(store, heard.region.as_deref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        for (seconds, text) in [
            (1, "1 second"),
            (89, "89 seconds"),
            (90, "about 2 minutes"),
            (20 * 60 + 4, "about 20 minutes"),
            (20 * 60 - 2, "about 20 minutes"),
            (5_399, "about 90 minutes"),
            (7_000, "about 2 hours"),
            (86_400, "about 24 hours"),
            (3 * 86_400, "about 3 days"),
            (i64::MAX, "about 106751991167301 days"),
        ] {
            assert_eq!(roughly(seconds), text);
        }
    }
}
