use serde_json::Value;

pub(super) const NOT_OBSERVED: &str = "it was changed and its controller has not seen that yet";

#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectView<'a>(pub(super) &'a Value);

#[derive(Clone, Copy, Debug)]
pub(super) struct Condition<'a> {
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
    /// For an older generation.
    pub(super) stale: bool,
}

impl Condition<'_> {
    pub(super) fn holds(&self) -> bool {
        self.status == "True" && !self.stale
    }

    pub(super) fn fails(&self) -> bool {
        self.status == "False" && !self.stale
    }
}

impl<'a> ObjectView<'a> {
    pub(super) fn spec(self) -> &'a Value {
        &self.0["spec"]
    }

    pub(super) fn status(self) -> &'a Value {
        &self.0["status"]
    }

    /// API servers omit zeros.
    pub(super) fn count(self, field: &str) -> i64 {
        self.status()[field].as_i64().unwrap_or(0)
    }

    pub(super) fn is_deleting(self) -> bool {
        self.0["metadata"]["deletionTimestamp"].is_string()
    }

    fn generation(self) -> Option<i64> {
        self.0["metadata"]["generation"].as_i64()
    }

    /// Whether the status declares an older generation.
    pub(super) fn is_outdated(self) -> bool {
        let observed = self.status()["observedGeneration"].as_i64();
        observed.is_some_and(|observed| observed < self.generation().unwrap_or(0))
    }

    /// Like [`Seen::is_behind`], but a status without generation is outdated.
    pub(super) fn is_unobserved(self) -> bool {
        self.count("observedGeneration") < self.generation().unwrap_or(0)
    }

    pub(super) fn condition(self, type_: &str) -> Option<Condition<'a>> {
        let condition = self.status()["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|condition| condition["type"].as_str() == Some(type_))?;
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        let observed = condition["observedGeneration"].as_i64();
        Some(Condition {
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
            stale: observed.is_some_and(|observed| observed < self.generation().unwrap_or(0)),
        })
    }

    pub(super) fn holds(self, type_: &str) -> bool {
        self.condition(type_).is_some_and(|condition| condition.holds())
    }
}
