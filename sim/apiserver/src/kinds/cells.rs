//! Cells of Table output.

use jiff::Timestamp;
use serde_json::Value;

pub(super) type Cell = fn(&Value, Timestamp) -> Value;

/// Name, type, priority (0: always shown), cell.
pub(super) type Column = (&'static str, &'static str, i32, Cell);

pub(super) fn at(object: &Value, pointer: &str) -> Value {
    object.pointer(pointer).cloned().unwrap_or(Value::Null)
}

pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

pub(super) fn count(object: &Value, fields: &[&str]) -> usize {
    let size = |field: &&str| match object.get(*field) {
        Some(Value::Object(map)) => map.len(),
        Some(Value::Array(list)) => list.len(),
        _ => 0,
    };
    fields.iter().map(size).sum()
}

pub(super) const CONTAINERS_OF_TEMPLATE: &str = "/spec/template/spec/containers";
pub(super) const JOB_CONTAINERS: &str = "/spec/jobTemplate/spec/template/spec/containers";

pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn text(object: &Value, pointer: &str) -> Value {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().into()
}

pub(super) fn or_words(object: &Value, pointer: &str, default: &str) -> Value {
    match object.pointer(pointer) {
        Some(Value::String(text)) if !text.is_empty() => text.as_str().into(),
        Some(Value::Number(number)) => number.to_string().into(),
        _ => default.into(),
    }
}

pub(super) fn or_none(object: &Value, pointer: &str) -> Value {
    or_words(object, pointer, "<none>")
}

pub(super) fn of_containers(object: &Value, pointer: &str, field: &str) -> Value {
    let all: Vec<&str> = list(object, pointer).iter().filter_map(|one| one.get(field)?.as_str()).collect();
    Value::from(all.join(","))
}

pub(super) fn external(object: &Value) -> Value {
    let own: Vec<&str> = list(object, "/spec/externalIPs").iter().map(word).collect();
    match word(&at(object, "/spec/type")) {
        "ExternalName" => text(object, "/spec/externalName"),
        "LoadBalancer" if own.is_empty() => {
            let given: Vec<&str> = list(object, "/status/loadBalancer/ingress")
                .iter()
                .filter_map(|one| one.get("ip").or_else(|| one.get("hostname"))?.as_str())
                .collect();
            if given.is_empty() { "<pending>".into() } else { given.join(",").into() }
        }
        _ if own.is_empty() => "<none>".into(),
        _ => own.join(",").into(),
    }
}

pub(super) fn subjects(object: &Value, kind: &str) -> Value {
    let of_kind = list(object, "/subjects").iter().filter(|subject| subject["kind"] == kind);
    let name = |subject: &Value| match subject["namespace"].as_str().filter(|_| kind == "ServiceAccount") {
        Some(namespace) => format!("{namespace}/{}", word(&subject["name"])),
        None => word(&subject["name"]).to_owned(),
    };
    of_kind.map(name).collect::<Vec<_>>().join(", ").into()
}

/// Current values are unknown: nothing measures them.
pub(super) fn targets(object: &Value) -> Value {
    let shown: Vec<String> = list(object, "/spec/metrics")
        .iter()
        .map(|metric| {
            let kind = word(&metric["type"]);
            let field = format!(
                "{}{}",
                kind.get(..1).unwrap_or_default().to_lowercase(),
                kind.get(1..).unwrap_or_default()
            );
            let (source, target) = (&metric[&field], &metric[&field]["target"]);
            let (wanted, average) =
                match (&target["averageUtilization"], &target["averageValue"], &target["value"]) {
                    (Value::Number(share), ..) => (format!("{share}%"), false),
                    (_, Value::String(value), _) => {
                        (value.clone(), field != "resource" && field != "containerResource")
                    }
                    (_, _, value) => (word(value).to_owned(), false),
                };
            let named = if field.to_lowercase().ends_with("resource") {
                format!("{}: ", word(&source["name"]))
            } else {
                String::new()
            };
            let average = if average && field != "pods" { " (avg)" } else { "" };
            format!("{named}<unknown>/{wanted}{average}")
        })
        .collect();
    match shown.as_slice() {
        [] => "<none>".into(),
        [one, two, three, ..] if shown.len() > 3 => {
            format!("{one}, {two}, {three} + {} more...", shown.len() - 3).into()
        }
        _ => shown.join(", ").into(),
    }
}

pub(super) fn job_status(object: &Value) -> Value {
    let holds = |kind: &str| {
        list(object, "/status/conditions").iter().any(|one| one["type"] == kind && one["status"] == "True")
    };
    let shown = [
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
    ];
    let known = shown.iter().find(|(kind, _)| holds(kind)).map_or("Running", |(_, word)| word);
    known.into()
}

pub(super) fn request_status(object: &Value) -> Value {
    let has = |kind: &str| list(object, "/status/conditions").iter().any(|one| one["type"] == kind);
    let decision = ["Denied", "Approved"].into_iter().find(|kind| has(kind)).unwrap_or("Pending");
    let failed = if has("Failed") { ",Failed" } else { "" };
    let is_issued = object.pointer("/status/certificate").is_some_and(|text| !word(text).is_empty());
    format!("{decision}{failed}{}", if is_issued { ",Issued" } else { "" }).into()
}

pub(super) fn completions(object: &Value) -> Value {
    let done = number(object, "/status/succeeded");
    match (object.pointer("/spec/completions").and_then(Value::as_i64), number(object, "/spec/parallelism")) {
        (Some(all), _) => format!("{done}/{all}").into(),
        (None, many) if many > 1 => format!("{done}/1 of {many}").into(),
        (None, _) => format!("{done}/1").into(),
    }
}

pub(super) fn labels(object: &Value, pointer: &str) -> Value {
    let map = object.pointer(pointer).and_then(Value::as_object);
    let pairs: Vec<String> =
        map.into_iter().flatten().map(|(name, value)| format!("{name}={}", word(value))).collect();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",").into() }
}

/// Kubectl's label selector format.
pub(super) fn selector(object: &Value, pointer: &str) -> Value {
    let selector = at(object, pointer);
    let wanted = selector["matchLabels"].as_object();
    let mut all: Vec<(String, String)> = wanted
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), format!("{name}={}", word(value))))
        .collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = word(&expression["key"]);
        let mut values: Vec<&str> = expression["values"].as_array().into_iter().flatten().map(word).collect();
        values.sort_unstable();
        let values = values.join(",");
        let shown = match word(&expression["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        all.push((key.to_owned(), shown));
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let shown: Vec<String> = all.into_iter().map(|(_, shown)| shown).collect();
    if shown.is_empty() { "<none>".into() } else { shown.join(",").into() }
}

pub(super) fn ports(object: &Value) -> Value {
    let ports = object.pointer("/spec/ports").and_then(Value::as_array);
    let shown: Vec<String> = ports
        .into_iter()
        .flatten()
        .map(|port| {
            let node = match number(port, "/nodePort") {
                0 => String::new(),
                node => format!(":{node}"),
            };
            let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
            format!("{}{node}/{protocol}", number(port, "/port"))
        })
        .collect();
    if shown.is_empty() { "<none>".into() } else { shown.join(",").into() }
}

/// An Event's first set time, by either API, or its creation.
pub(super) fn seen(object: &Value, own: [&str; 2], now: Timestamp) -> Value {
    let times = own.into_iter().chain(["/eventTime", "/metadata/creationTimestamp"]);
    since(times.filter_map(|time| object.pointer(time)).find(|time| !time.is_null()), now)
}

pub(super) fn since(time: Option<&Value>, now: Timestamp) -> Value {
    let Some(time) = time.and_then(Value::as_str).and_then(|time| time.parse::<Timestamp>().ok()) else {
        return Value::Null;
    };
    age(time, now)
}

/// A number of seconds.
pub(super) fn lasting(object: &Value, pointer: &str) -> Value {
    let seconds = object.pointer(pointer).and_then(Value::as_i64);
    seconds.map_or_else(|| "<none>".into(), |seconds| duration(seconds).into())
}

pub(super) fn age(time: Timestamp, now: Timestamp) -> Value {
    duration(now.as_second().saturating_sub(time.as_second())).into()
}

const DAY: i64 = 86_400;
const YEARS_2: i64 = 2 * 365 * DAY;
const YEARS_8: i64 = 8 * 365 * DAY;

fn duration(seconds: i64) -> String {
    match seconds {
        ..0 => "<invalid>".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{}m{}s", seconds / 60, seconds % 60),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..28_800 if seconds % 3600 >= 60 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        172_800..691_200 if seconds % DAY >= 3600 => {
            format!("{}d{}h", seconds / DAY, seconds % DAY / 3600)
        }
        691_200..YEARS_2 => format!("{}d", seconds / DAY),
        YEARS_2..YEARS_8 if seconds / DAY % 365 != 0 => {
            format!("{}y{}d", seconds / DAY / 365, seconds / DAY % 365)
        }
        _ => format!("{}y", seconds / DAY / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_formatted_as_by_kubectl() {
        let shown: Vec<String> =
            [5, 119, 125, 600, 3600, 11_000, 90_000, 180_000, 900_000].map(duration).into();
        assert_eq!(shown, ["5s", "119s", "2m5s", "10m", "60m", "3h3m", "25h", "2d2h", "10d"]);
        let years: Vec<String> = [729, 730, 731, 2919, 2920, 4000].map(|days| duration(days * DAY)).into();
        assert_eq!(years, ["729d", "2y", "2y1d", "7y364d", "8y", "10y"]);
    }
}
