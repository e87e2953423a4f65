//! Handles one request.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response, header, request::Parts};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    accept::{Accepted, Form, negotiate},
    answer::{self, Body},
    body::{self, Sent},
    discovery::Served,
    error::Dropped,
    hosted::Hosted,
    openapi::{self, GIT_VERSION},
    representation::{Include, Representation},
    route::{self, Parameters, Path},
    stream,
    tls::Subject,
};
use crate::{
    authz::{Ask, User},
    faults::{Call, Fault, Faults},
    kinds::builtin,
    store::{Outcome, PatchKind, Query, Refusal, Repeated, Request, Target, Verb, check_shape},
};

const OLD_OPENAPI: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// Valid media type, unlike the requested one.
const OLD_OPENAPI_IS: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const TEXT: &str = "text/plain; charset=utf-8";
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

pub(crate) struct Exchange {
    pub(crate) hosted: Arc<Hosted>,
    pub(crate) faults: Arc<dyn Faults>,
    pub(crate) clock: fn() -> Timestamp,
    /// The cluster's path prefix; empty on its own port.
    pub(crate) prefix: String,
    /// Path below the prefix.
    pub(crate) path: String,
    /// Subject of the client certificate.
    pub(crate) subject: Option<Subject>,
}

/// A request with its body.
struct Received {
    parts: Parts,
    body: Result<Bytes, Refusal>,
    parameters: Parameters,
    fault: Fault,
}

impl Exchange {
    pub(crate) async fn answer(self, parts: Parts, body: Incoming) -> Result<Response<Body>, Dropped> {
        let is_head = parts.method == Method::HEAD;
        let accept = accepted(&parts).to_owned();
        let is_yaml =
            self.path.starts_with("/api") && negotiate(&accept).is_some_and(|accepted| accepted.is_yaml);
        let answer = self.answer_whole(parts, body).await?;
        let answer = if is_yaml { answer::in_yaml(answer).await } else { answer };
        // A HEAD body (RFC 9110, 9.3.2) would break HTTP/2 streams.
        Ok(if is_head { answer.map(|_| answer::empty()) } else { answer })
    }

    async fn answer_whole(self, parts: Parts, body: Incoming) -> Result<Response<Body>, Dropped> {
        let body = body::read(body).await;
        let user = self.user(&parts);
        let parameters = route::parameters(parts.uri.query().unwrap_or_default());
        let is_watch = parameters.is_watch;
        let call = Call {
            cluster: self.hosted.name(),
            method: parts.method.as_str(),
            path: &self.path,
            verb: route::verb_name(parts.method.as_str(), &self.path, is_watch),
            is_watch,
            user: user.as_ref().map(|user| user.name.as_str()).unwrap_or_default(),
            agent: program(&parts),
        };
        let fault = self.faults.fault(&call);
        let interrupted = self.hosted.interruptions();
        match &fault {
            Fault::Latency(time) => tokio::time::sleep(*time).await,
            Fault::Lost => return stream::hang(interrupted).await,
            Fault::Refuse(refusal) => return Ok(answer::refusal(refusal)),
            Fault::Drop => return Err(Dropped),
            Fault::Unauthorized => return Ok(answer::refusal(&Refusal::unauthorized())),
            _ => {}
        }
        let hangs = fault == Fault::Hang;
        let received = Received { parts, body, parameters, fault };
        let answer = user.and_then(|user| self.dispatch(user, received));
        if hangs {
            return stream::hang(interrupted).await;
        }
        Ok(answer.unwrap_or_else(|refusal| answer::refusal(&refusal)))
    }

    fn user(&self, parts: &Parts) -> Result<Arc<User>, Refusal> {
        if parts.headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            return Err(Refusal::not_simulated("impersonation"));
        }
        let certified = self.subject.as_ref().map(|subject| self.hosted.by_certificate(subject));
        match (certified, bearer(parts)) {
            (Some(Some(user)), _) => Ok(user),
            (_, Some(token)) => self.hosted.by_token(token, (self.clock)()).ok_or_else(Refusal::unauthorized),
            (Some(None), None) => Err(Refusal::unauthorized()),
            (None, None) => Ok(Arc::new(User::anonymous())),
        }
    }

    fn dispatch(&self, user: Arc<User>, received: Received) -> Result<Response<Body>, Refusal> {
        let path = Path::parse(&self.path);
        if path == Path::BareWatch {
            return Ok(self.unnamed(received.parts.uri.query()));
        }
        self.authorize(&user, &path, &received)?;
        if self.is_delegated(&path) {
            return Ok(answer::text(503, TEXT, "service unavailable\n"));
        }
        let accept = accepted(&received.parts);
        if path == Path::OldOpenApi && accept.contains(OLD_OPENAPI) {
            return Ok(answer::text(200, OLD_OPENAPI_IS, openapi::empty_v2_protobuf()));
        }
        // These paths ignore `Accept`.
        let one_form = matches!(path, Path::Health | Path::Root | Path::OpenApi | Path::OpenApiOf(_));
        let accept = negotiate(if one_form { "" } else { accept }).ok_or_else(Refusal::not_acceptable)?;
        let Parameters { query, is_watch, .. } = &received.parameters;
        match path {
            // A single object has only the old watch form.
            Path::Objects(target) => {
                let is_watch = *is_watch && target.name.is_empty();
                self.objects(user, received, target, is_watch, accept)
            }
            Path::OldWatch(target) => {
                let target = watched(target, &received.parts.method, query)?;
                self.objects(user, received, target, true, accept)
            }
            other => self.about_server(&other, &received.parts, accept.form),
        }
    }

    /// Precedes path checks.
    fn authorize(&self, user: &User, path: &Path, received: &Received) -> Result<(), Refusal> {
        if user.may_all() {
            return Ok(());
        }
        let method = received.parts.method.as_str();
        let Parameters { query, is_watch, .. } = &received.parameters;
        let ask = match path {
            Path::Objects(target) | Path::OldWatch(target) => {
                Ask::of(route::verb_name(method, &self.path, *is_watch), target, query)
            }
            _ => Ask::path(&method.to_ascii_lowercase(), &self.path),
        };
        self.hosted.with(|cluster| cluster.authorize(user, &ask))
    }

    /// Whether a Service answers for the path's group version.
    fn is_delegated(&self, path: &Path) -> bool {
        let (Path::Objects(Target { group, version, .. })
        | Path::OldWatch(Target { group, version, .. })
        | Path::Resources(group, version)) = path
        else {
            return false;
        };
        self.hosted.with(|cluster| cluster.delegated().any(|(of, at)| of == *group && at == *version))
    }

    fn about_server(&self, path: &Path, parts: &Parts, form: Form) -> Result<Response<Body>, Refusal> {
        if parts.method != Method::GET {
            return Err(Refusal::method_not_allowed());
        }
        if let Path::NotSimulated(feature) = path {
            return Err(Refusal::not_simulated(feature));
        }
        let mut words = parts.uri.query().unwrap_or_default().split('&');
        if *path == Path::Health && words.any(|word| word.starts_with("verbose")) {
            let checked = self.path.split('/').find(|word| !word.is_empty()).unwrap_or_default();
            return Ok(answer::text(200, TEXT, format!("[+]ping ok\n{checked} check passed\n")));
        }
        Ok(self.about(path, form))
    }

    /// Applies a request about objects.
    fn objects(
        &self,
        user: Arc<User>,
        received: Received,
        target: Target,
        is_watch: bool,
        accept: Accepted,
    ) -> Result<Response<Body>, Refusal> {
        let Received { parts, body, parameters, fault } = received;
        let Parameters { query, include, .. } = parameters;
        if !target.is_simulated() {
            return Err(target.not_simulated());
        }
        let unserved = || self.hosted.with(|cluster| !cluster.serves(&target.group, &target.version));
        if !target.group.is_empty() && unserved() {
            return Ok(answer::text(404, TEXT, "404 page not found\n"));
        }
        if is_watch && accept.is_yaml {
            return Err(Refusal::no_stream());
        }
        let kind = self.hosted.with(|cluster| cluster.find(&target));
        let is_token = kind.as_ref().is_some_and(|kind| kind.has_tokens()) && target.subresource == "token";
        let kind_of_body = if is_token { Some(builtin::token_request()) } else { kind.as_deref() };
        let sent = Sent::new(body, &parts.headers, kind_of_body);
        let verb = verb(&parts.method, &target, is_watch)?;
        // Precedes body checks.
        if let Some(kind) = &kind {
            check_shape(kind, &target, &verb)?;
        }
        let (verb, repeated) = with_body(verb, sent)?;
        let agent = Some(program(&parts)).filter(|agent| !agent.is_empty()).unwrap_or("unknown").to_owned();
        let metadata_only = matches!(accept.form, Form::Metadata | Form::MetadataList);
        let request =
            Request { user, agent, verb, target, query: Query { repeated, metadata_only, ..query } };
        self.hosted.count(&request);
        let now = self.hosted.now((self.clock)());
        let outcome = self.hosted.apply(&request, (self.clock)());
        let included = Include::of(&include);
        if !matches!(outcome, Outcome::Refused(_)) && accept.form == Form::Table && included.is_none() {
            return Err(Refusal::no_such_rows(&include));
        }
        let include = included.unwrap_or(Include::Metadata);
        let representation = Representation { form: accept.form, version: accept.version, include, now };
        representation.fits(&outcome)?;
        match outcome {
            Outcome::Object(answer) => Ok(answer::object(answer, representation)),
            Outcome::List(listed) => Ok(answer::list(listed, representation)),
            Outcome::Refused(refusal) => Err(*refusal),
            Outcome::Watch(watching) => {
                let hosted = Arc::clone(&self.hosted);
                Ok(stream::response(hosted, *watching, representation, self.clock, &fault))
            }
        }
    }

    /// Fails before authentication, since the path names no kind.
    fn unnamed(&self, query: Option<&str>) -> Response<Body> {
        let requested = query.map_or_else(|| self.path.clone(), |query| format!("{}?{query}", self.path));
        let why = "failed to create RequestInfo: unable to determine kind and namespace from url";
        let text =
            format!("Internal Server Error: {}: {why}, {requested}\n", Value::from(requested.as_str()));
        answer::text(500, TEXT, text)
    }

    /// Non-object paths.
    fn about(&self, path: &Path, form: Form) -> Response<Body> {
        let served = || self.hosted.with(|cluster| Served::of(cluster));
        let found = match path {
            Path::Version => Some(json!({
                "major": "1", "minor": "36", "gitVersion": GIT_VERSION, "gitCommit": "simulated",
                "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none",
                "compiler": "rustc", "platform": "linux/amd64",
            })),
            Path::Health => return answer::text(200, TEXT, "ok"),
            Path::Metrics => {
                return answer::text(200, "text/plain; version=0.0.4", self.hosted.request_totals());
            }
            Path::Root => {
                let served = served();
                let mut paths = vec![
                    "/api".to_owned(),
                    "/apis".to_owned(),
                    "/healthz".into(),
                    "/livez".into(),
                    "/openapi/v3".into(),
                    "/readyz".into(),
                    "/version".into(),
                ];
                paths.extend(served.versions().map(|(group, version)| match group {
                    "" => format!("/api/{version}"),
                    group => format!("/apis/{group}/{version}"),
                }));
                paths.sort();
                Some(json!({"paths": paths}))
            }
            Path::CoreVersions | Path::Groups if form == Form::Discovery => {
                let body = served().aggregated(*path == Path::CoreVersions);
                return answer::text(200, DISCOVERY, body.to_string());
            }
            Path::CoreVersions => Some(json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:443"}],
            })),
            Path::Groups => Some(served().group_list()),
            Path::Group(group) => served().group(group),
            Path::Resources(group, version) => served().resources(group, version),
            Path::OldOpenApi => Some(openapi::empty_v2()),
            Path::OpenApi => Some(openapi::index(&served(), &self.prefix)),
            Path::OpenApiOf(path) => openapi::document(&served(), path),
            Path::Objects(_)
            | Path::OldWatch(_)
            | Path::BareWatch
            | Path::NotSimulated(_)
            | Path::Unknown => None,
        };
        let not_found = || answer::text(404, TEXT, "404 page not found\n");
        found.map_or_else(not_found, |body| answer::json(200, &body))
    }
}

/// `User-Agent` before the first `/`.
fn program(parts: &Parts) -> &str {
    let agent =
        parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    agent.split('/').next().unwrap_or_default()
}

/// Other authentication schemes are ignored.
fn bearer(parts: &Parts) -> Option<&str> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let mut words = value.splitn(3, ' ');
    let scheme = words.next()?;
    words.next().filter(|token| !token.is_empty() && scheme.eq_ignore_ascii_case("bearer"))
}

fn accepted(parts: &Parts) -> &str {
    parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Target of an old watch. Path and selector may both name it if equal.
fn watched(target: Target, method: &Method, query: &Query) -> Result<Target, Refusal> {
    if !target.subresource.is_empty() {
        return Err(Refusal::unknown_path());
    }
    if method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    let selected = query.list.field_selector.as_str();
    let same = selected.strip_prefix("metadata.name=").is_some_and(|name| name == target.name);
    if !target.name.is_empty() && !selected.is_empty() && !same {
        return Err(Refusal::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    Ok(target)
}

/// The body is read later.
fn verb(method: &Method, target: &Target, is_watch: bool) -> Result<Verb, Refusal> {
    let collection = target.name.is_empty();
    Ok(match method.as_str() {
        "GET" if is_watch => Verb::Watch,
        "GET" if collection => Verb::List,
        "GET" => Verb::Get,
        "POST" => Verb::Create(Value::Null),
        "PUT" => Verb::Update(Value::Null),
        "PATCH" => Verb::Patch(PatchKind::Merge, Value::Null),
        "DELETE" if collection => Verb::DeleteCollection(Value::Null),
        "DELETE" => Verb::Delete(Value::Null),
        _ => return Err(Refusal::method_not_allowed()),
    })
}

/// Adds the body; returns duplicate fields.
fn with_body(verb: Verb, body: Sent<'_>) -> Result<(Verb, Vec<Repeated>), Refusal> {
    match verb {
        Verb::Create(_) => body.object().map(|(object, repeated)| (Verb::Create(object), repeated)),
        Verb::Update(_) => body.object().map(|(object, repeated)| (Verb::Update(object), repeated)),
        Verb::Patch(..) => body.patch().map(|(how, (patch, repeated))| (Verb::Patch(how, patch), repeated)),
        Verb::Delete(_) => Ok((Verb::Delete(body.delete_options()?), Vec::new())),
        Verb::DeleteCollection(_) => Ok((Verb::DeleteCollection(body.delete_options()?), Vec::new())),
        other => Ok((other, Vec::new())),
    }
}
