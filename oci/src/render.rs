use std::{collections::HashSet, fmt};

use serde_json::Value;
use serde_saphyr::Spanned;
use tidewatch_api::{object::ObjectRef, yaml};

use super::unpack::{self, Caps, File};

const CAPS: Caps = Caps { bytes: 32 * 1024 * 1024, entries: 1000 };

/// Known modules have a few hundred.
const MAX_OBJECTS: usize = 5000;

/// JSON values take about a hundred bytes each, far more than their YAML.
const MAX_NODES: usize = 1_000_000;

const MAX_REASON: usize = 200;

const MAX_MISTAKES: usize = 10;

/// Reason why a layer has no usable manifests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Damaged, too large or unsafe archive.
    #[error("the layer is refused: {reason}; pack it as a tar of plain YAML files")]
    Archive {
        /// Reason.
        reason: String,
    },
    /// Invalid YAML, or YAML above the budgets.
    #[error("invalid YAML at {position}: {reason}")]
    Yaml {
        /// Position.
        position: Position,
        /// Parser message, without an excerpt.
        reason: String,
    },
    /// No Kubernetes object.
    #[error("{position} is no Kubernetes object: {reason}")]
    Object {
        /// Position.
        position: Position,
        /// Missing part.
        reason: String,
    },
    /// Too many objects or values.
    #[error("the layer holds more than {limit} {unit}; split the module")]
    TooLarge {
        /// `objects` or `values`.
        unit: &'static str,
        /// Limit.
        limit: usize,
    },
    /// No objects. Pruning after an empty module would delete everything.
    #[error("empty render: the layer holds no objects; nothing was changed")]
    Empty,
}

/// Position in a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// File; empty for a layer without archive.
    pub file: String,
    /// Document from 1.
    pub document: usize,
    /// Line from 1.
    pub line: Option<u64>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}: ", self.file)?;
        }
        write!(f, "document {}", self.document)?;
        match self.line {
            Some(line) => write!(f, " (line {line})"),
            None => Ok(()),
        }
    }
}

/// Content of a layer.
#[derive(Debug, Default, PartialEq)]
pub struct Rendered {
    /// Objects in written order; lists are flattened.
    pub objects: Vec<Value>,
    /// The first ten duplicates.
    pub mistakes: Vec<Mistake>,
    /// First object with `metadata.generateName` but no `metadata.name`. It does not hold up others.
    pub unnamed: Option<RenderError>,
}

/// Duplicate that other tools accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mistake {
    /// Key of a mapping; the last value counts.
    Key {
        /// Position of the second one.
        position: Position,
        /// Plain key.
        key: Option<String>,
    },
    /// Object; the first one counts.
    Object(ObjectRef),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { position, key: Some(key) } => write!(f, "{position} has the key '{key}' twice"),
            Self::Key { position, key: None } => write!(f, "{position} has a key twice"),
            Self::Object(id) => write!(f, "{id} is there twice"),
        }
    }
}

/// Returns the objects of a layer, as [`render`] does.
///
/// # Errors
/// Also for an object without a name.
pub fn manifests_of(bytes: &[u8], media_type: &str) -> Result<Vec<Value>, RenderError> {
    let Rendered { objects, unnamed, .. } = render(bytes, media_type)?;
    unnamed.map_or(Ok(objects), Err)
}

/// Reads a layer: a tar, a gzipped tar or plain YAML, by content rather than `media_type`.
///
/// Of several files, those named `*.yaml`, `*.yml` or `*.json` count. Limits: 32 MiB unpacked, 1,000 entries, 5,000
/// objects, one million values. Takes up to seconds: call it off the async threads.
///
/// # Errors
/// Also for a layer without objects.
pub fn render(bytes: &[u8], media_type: &str) -> Result<Rendered, RenderError> {
    render_within(MAX_NODES, bytes, media_type)
}

/// Whether YAML is one Kubernetes object, and no list.
pub(super) fn is_one_object(yaml: &str) -> bool {
    let file = File { path: String::new(), text: yaml.to_owned() };
    let objects = manifests_of(yaml.as_bytes(), "").unwrap_or_default();
    documents(&file, MAX_NODES).is_ok_and(|(written, _)| {
        matches!((objects.as_slice(), written.as_slice()), ([object], [(document, _)]) if object == document)
    })
}

fn render_within(max_nodes: usize, bytes: &[u8], media_type: &str) -> Result<Rendered, RenderError> {
    let mut files =
        unpack::files(bytes, media_type, CAPS).map_err(|e| RenderError::Archive { reason: e.to_string() })?;
    if files.len() > 1 {
        files.retain(|file| is_manifest_name(&file.path));
    }
    let mut rendered = Rendered::default();
    let mut nodes = 0;
    for file in &files {
        let (documents, repeated) = documents(file, max_nodes)?;
        rendered.mistakes.extend(repeated);
        for (value, line) in documents {
            nodes += count_nodes(&value);
            if nodes > max_nodes {
                return Err(RenderError::TooLarge { unit: "values", limit: max_nodes });
            }
            collect(value, &|| position(file, Some(line)), &mut rendered)?;
        }
    }
    if rendered.objects.is_empty() {
        return Err(RenderError::Empty);
    }
    rendered.mistakes.extend(repeated_objects(&rendered.objects).into_iter().map(Mistake::Object));
    rendered.mistakes.truncate(MAX_MISTAKES);
    Ok(rendered)
}

/// Finds duplicates. Runtimes use `default` for objects without a namespace.
fn repeated_objects(objects: &[Value]) -> Vec<ObjectRef> {
    let mut seen = HashSet::new();
    let ids = objects.iter().filter_map(ObjectRef::of);
    ids.filter(|id| {
        let (group, kind, namespace, name) = id.identity();
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        !seen.insert([group, kind, namespace, name].map(str::to_owned))
    })
    .collect()
}

fn is_manifest_name(path: &str) -> bool {
    let extension = path.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    matches!(extension.as_deref(), Some("yaml" | "yml" | "json"))
}

/// Schemas reach about 50 levels. Unoptimized, the parser takes 17 KiB of a 2 MiB stack for each.
pub(crate) const MAX_DEPTH: usize = 96;

type Documents = Vec<(Value, u64)>;

fn documents(file: &File, max_nodes: usize) -> Result<(Documents, Option<Mistake>), RenderError> {
    let options = yaml::options(max_nodes, MAX_DEPTH);
    let (documents, repeated) = yaml::read(&file.text, options, |text, options| {
        serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options)
    })
    .map_err(|error| {
        let line = error.location().map(|location| location.line());
        let mut reason = yaml::plain(&error);
        if let Some((end, _)) = reason.char_indices().nth(MAX_REASON) {
            reason.truncate(end);
        }
        RenderError::Yaml { position: position(file, line), reason }
    })?;
    let parsed = documents.into_iter().map(|document| (document.value, document.referenced.line()));
    let repeated = repeated
        .map(|repeated| Mistake::Key { position: position(file, Some(repeated.line)), key: repeated.key });
    Ok((parsed.filter(|(value, _)| !value.is_null()).collect(), repeated))
}

fn position(file: &File, line: Option<u64>) -> Position {
    let line = line.filter(|line| *line > 0);
    let before = usize::try_from(line.unwrap_or(1) - 1).unwrap_or(usize::MAX);
    let mut document = 1;
    let mut content = false;
    for text in file.text.lines().take(before) {
        if text.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t'])) {
            document += usize::from(content);
            content = false;
        } else if !text.trim_start().is_empty() && !text.trim_start().starts_with('#') {
            content = true;
        }
    }
    Position { file: file.path.clone(), document, line }
}

fn count_nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count_nodes).sum(),
        Value::Object(map) => map.values().map(count_nodes).sum(),
        _ => 0,
    }
}

/// The parser bounds the depth.
fn collect(
    value: Value,
    position: &dyn Fn() -> Position,
    rendered: &mut Rendered,
) -> Result<(), RenderError> {
    let refuse = |reason: &str| Err(RenderError::Object { position: position(), reason: reason.to_owned() });
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    if !value.is_object() {
        return refuse("it is not a mapping");
    }
    if text("/apiVersion").is_none() {
        return refuse("apiVersion is missing");
    }
    let Some(kind) = text("/kind") else { return refuse("kind is missing") };
    let named = text("/metadata/name").is_some();
    if kind == "List" || (kind.ends_with("List") && !named && value.get("items").is_some_and(Value::is_array))
    {
        let Value::Object(mut list) = value else { return refuse("it is not a mapping") };
        return match list.remove("items") {
            Some(Value::Array(items)) => {
                items.into_iter().try_for_each(|item| collect(item, position, rendered))
            }
            None | Some(Value::Null) => Ok(()),
            Some(_) => refuse("items of the list is not a sequence"),
        };
    }
    if !named {
        let Some(reason) = unnamed(&value) else { return refuse("metadata.name is missing") };
        rendered.unnamed.get_or_insert_with(|| RenderError::Object { position: position(), reason });
    }
    if rendered.objects.len() >= MAX_OBJECTS {
        return Err(RenderError::TooLarge { unit: "objects", limit: MAX_OBJECTS });
    }
    rendered.objects.push(value);
    Ok(())
}

/// Explains why an object with `metadata.generateName` cannot be applied.
#[must_use]
pub fn unnamed(object: &Value) -> Option<String> {
    let prefix = object.pointer("/metadata/generateName")?.as_str().filter(|prefix| !prefix.is_empty())?;
    let kind = object["kind"].as_str().unwrap_or_default();
    Some(format!(
        "metadata.name is missing: metadata.generateName '{prefix}' would make another {kind} at each sync; give it a name"
    ))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use serde_json::json;

    use super::{super::unpack::tar_of, *};

    const PAIR: &str = "# licence\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n\n---\napiVersion: \
                        apps/v1\nkind: Deployment\nmetadata:\n  name: b\n  namespace: a\n";

    fn names(objects: &[Value]) -> Vec<&str> {
        objects.iter().filter_map(|o| o.pointer("/metadata/name")?.as_str()).collect()
    }

    fn object(name: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
    }

    #[test]
    fn only_a_single_document_is_one_object() {
        const LIST: &str = "apiVersion: v1\nkind: List\nitems: ";
        for (yaml, is_one) in [
            (object("a"), true),
            (format!("# licence\n---\n{}---\n", object("a")), true),
            (PAIR.to_owned(), false),
            (format!("{LIST}[{{apiVersion: v1, kind: A, metadata: {{name: a}}}}]\n"), false),
            ("apiVersion: v1\nkind: A\n".to_owned(), false),
            (String::new(), false),
            ("x: [".to_owned(), false),
        ] {
            assert_eq!(is_one_object(&yaml), is_one, "{yaml}");
        }
    }

    #[test]
    fn tar_and_plain_yaml_of_several_documents() {
        assert_eq!(names(&manifests_of(PAIR.as_bytes(), "application/octet-stream").unwrap()), ["a", "b"]);
        let tar = tar_of(&[("x.yaml", PAIR), ("README.md", "not yaml: ["), ("y.yml", &object("c"))]).unwrap();
        assert_eq!(names(&manifests_of(&tar, "application/x-tar").unwrap()), ["a", "b", "c"]);
        let one = tar_of(&[("manifest", PAIR)]).unwrap();
        assert_eq!(names(&manifests_of(&one, "application/x-tar").unwrap()), ["a", "b"]);
    }

    #[test]
    fn only_real_lists_are_flattened() {
        let list = format!(
            "apiVersion: v1\nkind: List\nitems:\n- {}\n- apiVersion: v1\n  kind: ConfigMapList\n  items: [{}]\n",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}})
        );
        assert_eq!(names(&manifests_of(list.as_bytes(), "").unwrap()), ["a", "b"]);
        let sounds = "apiVersion: x/v1\nkind: AllowList\nmetadata: {name: a}\nitems: [1]\n";
        assert_eq!(names(&manifests_of(sounds.as_bytes(), "").unwrap()), ["a"]);
    }

    #[test]
    fn scalars_are_read_as_kubernetes_reads_them() {
        let yaml = object("a")
            + "data: {mode: 0644, quoted: \"0644\", on: \"on\", version: 1.10, big: 9007199254740993}\n";
        let objects = manifests_of(yaml.as_bytes(), "").unwrap();
        assert_eq!(
            objects[0]["data"],
            json!({"mode": 420, "quoted": "0644", "on": "on", "version": 1.1, "big": 9_007_199_254_740_993_u64})
        );
    }

    #[test]
    fn repeated_keys_and_objects_are_accepted_and_reported() {
        let mistakes = |yaml: &str| {
            let rendered = render(yaml.as_bytes(), "").unwrap();
            (rendered.objects, rendered.mistakes.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let (objects, messages) =
            mistakes(&(object("a") + "---\n" + &object("b") + "data: {x: '1', x: '2'}\n"));
        assert_eq!(objects[1]["data"], json!({"x": "2"}));
        assert_eq!(messages, ["document 2 (line 8) has the key 'x' twice"]);
        let (objects, messages) =
            mistakes(&(object("a") + "metadata: {name: b, labels: {commit: 31e99017}}\n"));
        assert_eq!(objects[0]["metadata"], json!({"name": "b", "labels": {"commit": "31e99017"}}));
        assert_eq!(messages.len(), 1);
        let repeated = object("a") + "---\n" + &object("b") + "---\n" + &object("a");
        let (objects, messages) = mistakes(&repeated);
        assert_eq!(
            (names(&objects), messages.len()),
            (vec!["a", "b", "a"], 1),
            "the bundle decides which one counts"
        );
        assert!(messages[0].ends_with("is there twice") && messages[0].contains('a'), "{messages:?}");
        assert_eq!(mistakes(&vec![object("a"); 100].join("---\n")).1.len(), MAX_MISTAKES);
        assert_eq!(mistakes(PAIR).1, Vec::<String>::new());
    }

    #[test]
    fn errors_name_the_document_and_the_line() {
        let error = |yaml: &str| manifests_of(yaml.as_bytes(), "").unwrap_err().to_string();
        let two = object("a") + "---\n";
        assert_eq!(
            error(&(two.clone() + "kind: X\nmetadata: {name: b}\n")),
            "document 2 (line 5) is no Kubernetes object: apiVersion is missing"
        );
        assert!(error(&(two.clone() + "apiVersion: v1\nmetadata: {name: b}\n")).contains("kind is missing"));
        assert!(error(&(two.clone() + "apiVersion: v1\nkind: X\n")).contains("metadata.name is missing"));
        assert!(error(&(two.clone() + "- 1\n")).contains("not a mapping"));
        let generated = error(&(two.clone() + "apiVersion: v1\nkind: X\nmetadata: {generateName: b-}\n"));
        assert!(generated.contains("metadata.generateName 'b-' would make another X"), "{generated}");
        let rendered =
            render((two.clone() + "apiVersion: v1\nkind: X\nmetadata: {generateName: b-}\n").as_bytes(), "")
                .unwrap();
        assert_eq!((rendered.objects.len(), rendered.unnamed.is_some()), (2, true), "it holds up no others");
        let syntax = error(&(two + "a: [1\nb: 'secret-text\n"));
        assert!(syntax.starts_with("invalid YAML at document 2 (line "), "{syntax}");
        assert!(!syntax.contains("secret-text"), "{syntax}");
        let tar = tar_of(&[("m.yaml", "x: [")]).unwrap();
        assert!(manifests_of(&tar, "").unwrap_err().to_string().contains("at m.yaml: document 1"));
    }

    #[test]
    fn an_empty_input_is_an_error() {
        for yaml in ["", "---\n---\n", "# only a comment\n", "apiVersion: v1\nkind: List\nitems: []\n"] {
            assert_eq!(manifests_of(yaml.as_bytes(), "").unwrap_err(), RenderError::Empty, "{yaml}");
        }
        assert_eq!(manifests_of(&tar_of(&[]).unwrap(), "application/x-tar").unwrap_err(), RenderError::Empty);
    }

    #[test]
    fn oversized_and_deeply_nested_input_is_refused() {
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let items = vec![format!("*a{}", level - 1); 9].join(", ");
            writeln!(laughs, "a{level}: &a{level} [{items}]").unwrap();
        }
        assert!(matches!(manifests_of(laughs.as_bytes(), ""), Err(RenderError::Yaml { .. })));
        let deep =
            |levels| object("a") + "data: " + &"[".repeat(levels) + &"x".repeat(2000) + &"]".repeat(levels);
        for (levels, read) in [(MAX_DEPTH - 1, true), (MAX_DEPTH, false), (5000, false)] {
            assert_eq!(manifests_of(deep(levels).as_bytes(), "").is_ok(), read, "{levels}");
        }
        let many = vec![object("a"); MAX_OBJECTS + 1].join("---\n");
        assert!(matches!(
            manifests_of(many.as_bytes(), ""),
            Err(RenderError::TooLarge { unit: "objects", .. })
        ));
        let wide = object("a") + "data: [" + &"1,".repeat(600) + "]\n";
        assert!(matches!(render_within(500, wide.as_bytes(), ""), Err(RenderError::Yaml { .. })));
        let files = tar_of(&[("a.yaml", &wide), ("b.yaml", &wide)]).unwrap();
        let error = render_within(1000, &files, "").unwrap_err();
        assert_eq!(error, RenderError::TooLarge { unit: "values", limit: 1000 });
    }

    proptest::proptest! {
        #[test]
        fn rendering_never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000), tar in proptest::bool::ANY) {
            let _ = manifests_of(&bytes, if tar { "application/x-tar" } else { "" });
        }
    }
}
