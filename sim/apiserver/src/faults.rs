//! Where faults are put in: asked for each request, before the cluster sees it.

use std::{fmt, time::Duration};

use crate::store::Refusal;

/// What is known of a request when it is asked whether something goes wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The cluster's name.
    pub cluster: &'a str,
    /// HTTP method.
    pub method: &'a str,
    /// Path below the cluster's own.
    pub path: &'a str,
    /// What is asked, as authorization names it; `discovery` for what is not about objects.
    pub verb: &'static str,
    /// Whether it begins a watch.
    pub is_watch: bool,
    /// Who asks; empty without credentials.
    pub user: &'a str,
    /// With which program: what stands before the first `/` of `User-Agent`; empty without one.
    pub agent: &'a str,
}

/// What goes wrong with a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It is answered later.
    Latency(Duration),
    /// It is answered with an error: [`Refusal::too_many_requests`], [`Refusal::failing`] and so on.
    Refuse(Refusal),
    /// It is done, and never answered; nor is anything else on its stream.
    Hang,
    /// It is not done, and never answered: it was lost on the way.
    Lost,
    /// The connection ends without an answer. Other requests on the same HTTP/2 connection are not hurt: only the
    /// stream is reset.
    Drop,
    /// Credentials are no longer good.
    Unauthorized,
    /// A watch says nothing after this time, and does not end: the half-open connection of a lost load balancer.
    Silent(Duration),
    /// A watch or list breaks off in the middle after this time.
    BreakOff(Duration),
    /// A watch ends with 410 after this time.
    Expire(Duration),
}

/// Decides what goes wrong. Called on the request's task: it must not block.
pub trait Faults: fmt::Debug + Send + Sync {
    /// What goes wrong with this request.
    fn fault(&self, call: &Call<'_>) -> Fault;
}

/// Nothing ever goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn fault(&self, _: &Call<'_>) -> Fault {
        Fault::None
    }
}
