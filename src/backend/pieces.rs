//! Uploads in pieces: a single PUT for short content, a multipart upload for long content. Also a
//! helper that runs work with bounded concurrency.

use std::io;

use bytes::{Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};

use super::S3Backend;
use super::quota::Reservation;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{ObjectKey, Target, WritableKey};
use crate::path::VirtualPath;
use crate::store::{Condition, ObjectProperties, PartSource, Parts, Payload, Put, Seen, Write, WriteId};

/// How many parts of one upload are in flight.
const PARTS_AT_ONCE: usize = 4;

impl S3Backend {
    /// Splits content into parts for an upload. Short content is a single part.
    pub(super) fn pieces(&self, mut content: Bytes) -> Vec<PartSource> {
        if content.len() as u64 <= self.store().single_put_bytes() {
            return vec![PartSource::Bytes(content)];
        }
        let size = usize::try_from(self.shared.settings.part_bytes).unwrap_or(usize::MAX);
        let mut pieces = Vec::new();
        while !content.is_empty() {
            pieces.push(PartSource::Bytes(content.split_to(size.min(content.len()))));
        }
        pieces
    }

    /// Describes an object as the source of a server-side copy. A single part, up to the size limit
    /// of S3.
    pub(super) fn copy_parts(&self, source: &ObjectKey, seen: &Seen) -> Result<Vec<PartSource>> {
        let etag = seen.meta.etag.clone().unwrap_or_default();
        let piece = |range| PartSource::Copy { source: source.clone(), etag: etag.clone(), range };
        Ok(self.store().copy_pieces(seen.meta.size)?.into_iter().map(piece).collect())
    }

    /// Sends a write: a single piece in one request, several as a multipart upload.
    pub(super) async fn put_pieces(
        &self,
        key: &WritableKey,
        id: &WriteId,
        condition: Condition,
        properties: &ObjectProperties,
        mut pieces: Vec<PartSource>,
    ) -> Result<Put> {
        if pieces.len() <= 1 {
            let payload = Payload::Whole(pieces.pop().unwrap_or(PartSource::Bytes(Bytes::new())));
            return self.store().put(&Write { key, id, payload, condition, properties }).await;
        }
        let mut parts = self.store().start_parts(key, properties).await?;
        let sending = async {
            self.send_pieces(&mut parts, pieces).await?;
            self.store().put(&Write { key, id, payload: parts.payload(), condition, properties }).await
        };
        let put = sending.await;
        match &put {
            Ok(Put::Done { .. }) => parts.completed(),
            // If the upload took effect after all, there is nothing left to abort, which is
            // harmless.
            _ => parts.abort().await,
        }
        put
    }

    /// Uploads pieces concurrently.
    async fn send_pieces(&self, parts: &mut Parts, pieces: Vec<PartSource>) -> Result<()> {
        // Collected up front: with a closure inside the stream, callers could not spawn this
        // future.
        let waiting: Result<Vec<_>> =
            pieces.into_iter().map(|piece| parts.send(self.store(), piece)).collect();
        // Even after a failure, parts in flight are awaited: they could outlive the abort.
        for part in for_each(waiting?, PARTS_AT_ONCE, |part| part).await? {
            parts.add(part);
        }
        Ok(())
    }

    /// Uploads content part by part, several concurrently. Returns its size and its quota
    /// reservation.
    pub(super) async fn send_parts(
        &self,
        target: &Target,
        parts: &mut Parts,
        mut reader: Reader,
        content: &mut (impl Stream<Item = io::Result<Bytes>> + Send + Unpin),
    ) -> Result<(u64, Reservation)> {
        let path = &target.path;
        let during = |error: Error| error.during("write", path);
        let mut in_flight = FuturesUnordered::new();
        let sending = async {
            let old = self.replaced(path, parts.key()).await?;
            let mut reservation = self.reserve(target, path, reader.total, old).await?;
            loop {
                let size = parts.next_size(self.shared.settings.part_bytes);
                reader.fill(self, path, content, size).await?;
                if reader.buffer.is_empty() {
                    return Ok((reader.total, reservation));
                }
                // Reserve quota as the content grows, not only once all of it has arrived.
                drop(reservation);
                reservation = self.reserve(target, path, reader.total, old).await?;
                let at = usize::try_from(size).unwrap_or(usize::MAX).min(reader.buffer.len());
                let part = PartSource::Bytes(reader.buffer.split_to(at).freeze());
                in_flight.push(parts.send(self.store(), part).map_err(during)?);
                while in_flight.len() >= PARTS_AT_ONCE {
                    let Some(part) = in_flight.next().await else { break };
                    parts.add(part.map_err(during)?);
                }
            }
        };
        let mut sent: Result<(u64, Reservation)> = sending.await;
        // Even after a failure, parts in flight are awaited: they could outlive the abort.
        while let Some(part) = in_flight.next().await {
            match part {
                Ok(part) => parts.add(part),
                Err(error) => sent = sent.and(Err(during(error))),
            }
        }
        sent
    }
}

/// Buffers content from a stream on demand.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) buffer: BytesMut,
    /// Whether the stream has ended.
    pub(super) ended: bool,
    total: u64,
}

impl Reader {
    /// Reads from the stream until the buffer has `bytes` bytes, or the stream ends.
    pub(super) async fn fill(
        &mut self,
        backend: &S3Backend,
        path: &VirtualPath,
        content: &mut (impl Stream<Item = io::Result<Bytes>> + Send + Unpin),
        bytes: u64,
    ) -> Result<()> {
        while !self.ended && (self.buffer.len() as u64) < bytes {
            match content.next().await {
                Some(Ok(piece)) => {
                    self.total += piece.len() as u64;
                    backend.check_file_size(path, self.total)?;
                    self.buffer.extend_from_slice(&piece);
                }
                Some(Err(error)) => {
                    return Err(Error::new(
                        ErrorKind::InvalidInput,
                        format!("cannot write `{path}`: reading its content failed: {error}"),
                    )
                    .at(path)
                    .with_hint("nothing was written; check the source of the content")
                    .with_source(error));
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }
}

/// Runs `work` for all items, at most `at_once` concurrently.
///
/// After a failure nothing new is started, but running work is awaited: if it were canceled, it
/// could still take effect later and overwrite newer content.
pub(super) async fn for_each<I, T, W>(
    items: Vec<I>,
    at_once: usize,
    mut work: impl FnMut(I) -> W,
) -> Result<Vec<T>>
where
    W: Future<Output = Result<T>>,
{
    let (mut items, mut running) = (items.into_iter(), FuturesUnordered::new());
    let (mut done, mut failed) = (Vec::new(), None);
    loop {
        while failed.is_none()
            && running.len() < at_once
            && let Some(item) = items.next()
        {
            running.push(work(item));
        }
        match running.next().await {
            Some(Ok(result)) => done.push(result),
            Some(Err(error)) => failed = failed.or(Some(error)),
            None => return failed.map_or(Ok(done), Err),
        }
    }
}
