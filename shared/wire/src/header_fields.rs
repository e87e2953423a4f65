//! Fields that are constant on a connection, as headers instead of body fields.
//!
//! HTTP/2 sends a repeated header as one byte, and an idle agent's requests consist mostly of such fields.

use crate::{
    Epoch, SessionId,
    v3::{Health, Request, Response},
};

/// Header for `epoch`.
pub const EPOCH: &str = "tidewatch-epoch";
/// Header for `session`. In an answer: the receiver's session; it shows that the receiver supports these headers.
pub const SESSION: &str = "tidewatch-session";
/// Header for `health.configuration`.
pub const CONFIGURATION: &str = "tidewatch-configuration";

/// Fields in a request's headers. The body takes precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields {
    /// See [`Request::epoch`].
    pub epoch: Option<Epoch>,
    /// See [`Request::session`].
    pub session: Option<SessionId>,
    /// See [`Health::configuration`]. A body may hold a [`Health`] without it.
    pub configuration: Option<String>,
}

/// Session in an answer's [`SESSION`] header; `None` if absent or invalid.
#[must_use]
pub fn session(header: Option<&[u8]>) -> Option<SessionId> {
    SessionId::parse(str::from_utf8(header?).ok()?).filter(|session| !session.is_nil())
}

/// Completes an answer with the request header's epoch and the session. `None` without any session.
#[must_use]
pub fn complete(mut answer: Response, epoch: Option<Epoch>, session: Option<SessionId>) -> Option<Response> {
    if answer.epoch.is_nil() {
        answer.epoch = epoch.unwrap_or_default();
    }
    if answer.session.is_nil() {
        answer.session = session?;
    }
    Some(answer)
}

/// An unreadable header.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the header {0} cannot be read")]
pub struct HeaderFieldsError(pub &'static str);

impl HeaderFields {
    /// Moves fields of a request to headers.
    #[must_use]
    pub fn take(request: &mut Request<'_>) -> Self {
        let epoch = Some(std::mem::take(&mut request.epoch));
        let session = request.session.take();
        let mut configuration = None;
        if let Some(health) = &mut request.health
            && !health.configuration.is_empty()
            && health.configuration.bytes().all(|byte| byte.is_ascii_graphic())
        {
            configuration = Some(std::mem::take(&mut health.configuration));
            if *health == Health::default() {
                request.health = None;
            }
        }
        Self { epoch, session, configuration }
    }

    /// Fills the fields that the request lacks.
    pub fn give(self, request: &mut Request<'_>) {
        if let Some(epoch) = self.epoch
            && request.epoch.is_nil()
        {
            request.epoch = epoch;
        }
        request.session = request.session.or(self.session);
        if let Some(configuration) = self.configuration {
            let health = request.health.get_or_insert_default();
            if health.configuration.is_empty() {
                health.configuration = configuration;
            }
        }
    }

    /// Headers with values in visible ASCII.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let epoch = self.epoch.map(|epoch| (EPOCH, epoch.to_string()));
        let session = self.session.map(|session| (SESSION, session.to_string()));
        let configuration = self.configuration.clone().map(|text| (CONFIGURATION, text));
        epoch.into_iter().chain(session).chain(configuration)
    }

    /// Reads headers. Lengths are checked with the request.
    pub fn read<'h>(header: impl Fn(&'static str) -> Option<&'h [u8]>) -> Result<Self, HeaderFieldsError> {
        let text = |name| match header(name).map(str::from_utf8) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(HeaderFieldsError(name)),
        };
        let epoch = match text(EPOCH)? {
            None => None,
            Some(text) => Some(Epoch::parse(text).ok_or(HeaderFieldsError(EPOCH))?),
        };
        let session = match text(SESSION)? {
            None => None,
            Some(text) => Some(SessionId::parse(text).ok_or(HeaderFieldsError(SESSION))?),
        };
        Ok(Self { epoch, session, configuration: text(CONFIGURATION)?.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn health() -> impl Strategy<Value = Option<Health>> {
        let health = ("[ -~é]{0,40}", prop::collection::vec("[a-z]{1,5}", 0..3), "[a-z]{0,5}");
        prop::option::of(health.prop_map(|(configuration, blind, trust)| Health {
            configuration,
            blind,
            trust,
            ..Health::default()
        }))
    }

    proptest! {
        #[test]
        fn fields_taken_out_are_read_from_the_headers(
            epoch in 1_u128.., session in prop::option::of(any::<u128>()), health in health(),
        ) {
            let request = Request {
                session: session.map(SessionId::from_bits),
                health,
                ..Request::new(Epoch::from_bits(epoch))
            };
            let mut brief = request.clone();
            let headers: Vec<_> = HeaderFields::take(&mut brief).headers().collect();
            let body = serde_json::to_string(&brief).unwrap();
            prop_assert!(!body.contains("epoch") && !body.contains("session"), "{}", body);
            let header = |name| headers.iter().find(|(n, _)| *n == name).map(|(_, text)| text.as_bytes());
            for (_, text) in &headers {
                prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            }
            let mut read = serde_json::from_str::<Request<'_>>(&body).unwrap();
            HeaderFields::read(header).unwrap().give(&mut read);
            prop_assert_eq!(read, request);
        }
    }

    #[test]
    fn a_body_takes_precedence_over_its_headers() {
        let all = HeaderFields {
            epoch: Some(Epoch::from_bits(1)),
            session: Some(SessionId::from_bits(2)),
            configuration: Some("c".into()),
        };
        let request = Request {
            session: Some(SessionId::from_bits(3)),
            health: Some(Health { configuration: "d".into(), ..Health::default() }),
            ..Request::new(Epoch::from_bits(4))
        };
        let mut given = request.clone();
        all.give(&mut given);
        assert_eq!(given, request);
    }

    #[test]
    fn an_answers_body_takes_precedence_over_its_headers() {
        let (one, two) = (SessionId::from_bits(1), SessionId::from_bits(2));
        let epoch = Epoch::from_bits(3);
        let brief = Response::new(Epoch::default(), SessionId::default());
        assert_eq!(complete(brief.clone(), Some(epoch), None), None);
        assert_eq!(complete(brief, Some(epoch), Some(two)), Some(Response::new(epoch, two)));
        let whole = Response::new(Epoch::from_bits(4), one);
        assert_eq!(complete(whole.clone(), Some(epoch), Some(two)), Some(whole));
        let nil = SessionId::default().to_string();
        let headers = [None, Some(&b"\xff"[..]), Some(b""), Some(nil.as_bytes())];
        assert_eq!(headers.map(session), [None; 4]);
        assert_eq!(session(Some(two.to_string().as_bytes())), Some(two));
    }

    #[test]
    fn malformed_header_values_are_refused() {
        for (name, value) in [(EPOCH, &b"1"[..]), (SESSION, b""), (CONFIGURATION, b"\xff")] {
            let read = HeaderFields::read(|asked| (asked == name).then_some(value));
            assert_eq!(read, Err(HeaderFieldsError(name)));
        }
        assert_eq!(HeaderFields::read(|_| None), Ok(HeaderFields::default()));
    }
}
