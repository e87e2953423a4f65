//! Lenient parsing of times. API servers accept years up to 9999, and [`Timestamp`] cannot hold the last of them. Such
//! an object must still parse.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Deserializer};

/// A time; one out of range becomes the latest [`Timestamp`].
#[derive(Clone, Debug, Default)]
struct Moment(Option<Time>);

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(Self(text.map(|text| Time(text.parse().unwrap_or(Timestamp::MAX)))))
    }
}

/// [`Condition`] with a lenient time.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct LenientCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
    observed_generation: Option<i64>,
    last_transition_time: Moment,
}

impl From<LenientCondition> for Condition {
    fn from(
        LenientCondition { type_, status, reason, message, observed_generation, last_transition_time }: LenientCondition,
    ) -> Self {
        let last_transition_time = last_transition_time.0.unwrap_or(Time(Timestamp::UNIX_EPOCH));
        Self { last_transition_time, message, observed_generation, reason, status, type_ }
    }
}

/// Deserializes an optional time.
pub(crate) fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    Moment::deserialize(deserializer).map(|moment| moment.0)
}

/// Deserializes the conditions of a status.
pub(crate) fn conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    let conditions = Option::<Vec<LenientCondition>>::deserialize(deserializer)?;
    Ok(conditions.unwrap_or_default().into_iter().map(Condition::from).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{LastOperation, ManifestStatus, OfferedVersion};

    #[test]
    fn an_out_of_range_time_is_clamped() {
        for (written, read) in [
            ("2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"),
            ("2026-01-31T10:00:00+02:00", "2026-01-31T08:00:00Z"),
            ("9999-12-31T23:59:59Z", "9999-12-30T22:00:00.999999999Z"),
            ("9999-12-31T00:00:00Z", "9999-12-30T22:00:00.999999999Z"),
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
        ] {
            let read: Timestamp = read.parse().unwrap();
            let operation: LastOperation =
                serde_json::from_value(json!({"operation": "x", "lastUpdateTime": written})).unwrap();
            assert_eq!(operation.last_update_time, Some(Time(read)), "{written}");
            let offered: OfferedVersion =
                serde_json::from_value(json!({"version": "1.0.0", "deprecationDate": written})).unwrap();
            assert_eq!(offered.deprecation_date, Some(Time(read)), "{written}");
            let condition = json!({"type": "Installation", "status": "True", "reason": "Ready", "message": "m",
                                   "observedGeneration": 3, "lastTransitionTime": written});
            let status: ManifestStatus = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
            let expected = Condition {
                type_: "Installation".into(),
                status: "True".into(),
                reason: "Ready".into(),
                message: "m".into(),
                observed_generation: Some(3),
                last_transition_time: Time(read),
            };
            assert_eq!(status.conditions, [expected], "{written}");
        }
        let bare: ManifestStatus =
            serde_json::from_value(json!({"conditions": [{}], "lastOperation": {"operation": "x"}})).unwrap();
        assert_eq!(bare.conditions.len(), 1);
        assert_eq!(bare.last_operation.unwrap().last_update_time, None);
        let none: ManifestStatus = serde_json::from_value(json!({"conditions": null})).unwrap();
        assert!(none.conditions.is_empty());
    }
}
