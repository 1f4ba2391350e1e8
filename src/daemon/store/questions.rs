//! What may be asked of the queue: reads, each within one transaction of the writer, so that they see what was stored before.

use super::{
    ClaimRow, EnvelopeRow, Position, QueueCounts, QueueFilter, RunRow, SessionRow, Store,
    StoreError, Upload, call_off, claims, envelopes, outbox, sessions, uploads,
};
use crate::domain::{
    ClaimId, Cursor, Envelope, EnvelopeId, ProjectName, Report, SessionId, WallMs,
};

impl Store {
    /// Where the queue stands towards the hub.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn position(&self) -> Result<Position, StoreError> {
        self.job(false, envelopes::position).await
    }

    /// The durable cursor.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn cursor(&self) -> Result<Option<Cursor>, StoreError> {
        Ok(self.position().await?.last)
    }

    /// Reports after number `n`, in order, at most `limit`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn reports_after(&self, n: u64, limit: u32) -> Result<Vec<Report>, StoreError> {
        self.job(false, move |tx| outbox::after(tx, n, limit)).await
    }

    /// Reports about an envelope that only this daemon knows, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn local_reports(&self, id: EnvelopeId) -> Result<Vec<Report>, StoreError> {
        self.job(false, move |tx| outbox::local(tx, id.0)).await
    }

    /// Envelopes in lane order (urgent first, by arrival within a lane), at most `limit`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn queued(
        &self,
        filter: QueueFilter,
        limit: u32,
    ) -> Result<Vec<EnvelopeRow>, StoreError> {
        self.job(false, move |tx| envelopes::list(tx, &filter, limit))
            .await
    }

    /// Envelopes that are queued or claimed and arrived after `after` ([`EnvelopeRow::ord`]), by arrival, at most `limit`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn arrived(&self, after: i64, limit: u32) -> Result<Vec<EnvelopeRow>, StoreError> {
        self.job(false, move |tx| envelopes::arrived(tx, after, limit))
            .await
    }

    /// One envelope, if it is still kept.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn envelope(&self, id: EnvelopeId) -> Result<Option<EnvelopeRow>, StoreError> {
        self.job(false, move |tx| envelopes::get(tx, id)).await
    }

    /// Those of these envelopes that are still kept, in this order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn envelopes(&self, ids: Vec<EnvelopeId>) -> Result<Vec<EnvelopeRow>, StoreError> {
        self.job(false, move |tx| {
            let rows = ids.iter().map(|id| envelopes::get(tx, *id));
            rows.filter_map(Result::transpose).collect()
        })
        .await
    }

    /// The attempts of a task, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn attempts(&self, task: EnvelopeId) -> Result<Vec<EnvelopeRow>, StoreError> {
        self.job(false, move |tx| envelopes::of_task(tx, task))
            .await
    }

    /// Queued envelopes whose `expires_at` is not after `at`, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn overdue(&self, at: WallMs, limit: u32) -> Result<Vec<EnvelopeRow>, StoreError> {
        self.job(false, move |tx| envelopes::overdue(tx, at, limit))
            .await
    }

    /// The sessions that queued mail is addressed to.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn addressed_sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        self.job(false, envelopes::addressed_sessions).await
    }

    /// How much stands where.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn counts(&self) -> Result<QueueCounts, StoreError> {
        self.job(false, envelopes::counts).await
    }

    /// Claims that are not closed, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn open_claims(&self) -> Result<Vec<ClaimRow>, StoreError> {
        self.job(false, claims::open_claims).await
    }

    /// One claim, open or closed within the last day.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn claim(&self, id: ClaimId) -> Result<Option<ClaimRow>, StoreError> {
        self.job(false, move |tx| claims::get(tx, id)).await
    }

    /// The session with this id, else the one whose lineage holds it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.job(false, move |tx| sessions::get(tx, id)).await
    }

    /// Sessions, the most recently active first; of one project if one is named.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn sessions(
        &self,
        project: Option<ProjectName>,
        limit: u32,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.job(false, move |tx| sessions::list(tx, project.as_ref(), limit))
            .await
    }

    /// Runs that are not finished, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn unfinished_runs(&self) -> Result<Vec<RunRow>, StoreError> {
        self.job(false, sessions::unfinished_runs).await
    }

    /// The runs of a task, by attempt.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn runs_of(&self, task: EnvelopeId) -> Result<Vec<RunRow>, StoreError> {
        self.job(false, move |tx| sessions::runs_of(tx, task)).await
    }

    /// The attempts, or the message, that this cancel means.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn called_off(&self, cancel: Envelope) -> Result<Vec<EnvelopeRow>, StoreError> {
        self.job(false, move |tx| call_off::rows(tx, &cancel)).await
    }

    /// Whether this attempt or message was called off, or a newer attempt is here.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn is_called_off(&self, id: EnvelopeId) -> Result<bool, StoreError> {
        self.job(false, move |tx| {
            envelopes::get(tx, id)?.map_or(Ok(false), |row| call_off::is_off(tx, &row.envelope))
        })
        .await
    }

    /// Results that are to be uploaded, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn uploads(&self) -> Result<Vec<Upload>, StoreError> {
        self.job(false, uploads::list).await
    }

    /// A piece of such a text from the byte `offset` on; `None` where it ends, or within a character.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn upload_piece(
        &self,
        id: EnvelopeId,
        offset: u64,
    ) -> Result<Option<String>, StoreError> {
        self.job(false, move |tx| uploads::piece(tx, id, offset))
            .await
    }
}
