use super::Sender;
use crate::send::{
    link::Link,
    transport::{Channel, Transport},
};
use tidewatch_telemetry::chain;

impl<T: Transport> Sender<T> {
    /// Stores and declares the final digest, for the next start to claim.
    pub(super) async fn shut_down(mut self) {
        let limit = self.settings.shutdown;
        match self.digests.store_last(&self.outbox, limit).await {
            Ok(Some(serial)) => self.outbox.digest_stored(serial),
            Ok(None) => {}
            Err(_) => {
                tracing::warn!("the digest could not be stored; the next start reports everything");
                return;
            }
        }
        if !self.outbox.declares() {
            return;
        }
        let request = self.outbox.heartbeat();
        let Link::Up(up) = &mut self.link else {
            tracing::warn!(
                "without a connection, the digest is not declared; the next start reports everything"
            );
            return;
        };
        if let Err(error) = up.connection.post(&request, limit).await {
            tracing::warn!(error = %chain(&error), "the digest could not be declared; the next start reports everything");
        }
    }
}
