//! Which events a reader gets.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use serde::Deserialize;

use crate::domain::{DeviceId, EnvelopeId, ProjectName};
use crate::hub::records::ItemRecord;
use crate::hub::store::Noted;

/// What a reader asked for, within what its token may read.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Filter {
    /// The types it gets.
    pub(crate) types: Vec<&'static str>,
    pub(crate) device: Option<DeviceId>,
    pub(crate) project: Option<ProjectName>,
    /// Only this item.
    pub(crate) about: Option<EnvelopeId>,
}

/// What a filter looks at.
#[derive(Debug, Deserialize)]
pub(crate) struct Head {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    device: String,
    #[serde(default)]
    project: Option<String>,
    #[serde(default)]
    pub(crate) terminal: bool,
}

impl Head {
    /// The head of a stored event; `None` for one that cannot be read.
    pub(crate) fn of(noted: &Noted) -> Option<Self> {
        serde_json::from_str(&noted.json).ok()
    }
}

impl Filter {
    pub(crate) fn fits(&self, noted: &Noted, head: &Head) -> bool {
        self.about.is_none_or(|id| id == noted.about)
            && self.types.iter().any(|t| *t == head.kind)
            && self
                .device
                .as_ref()
                .is_none_or(|d| d.as_str() == head.device)
            && self
                .project
                .as_ref()
                .is_none_or(|p| head.project.as_deref() == Some(p.as_str()))
    }

    /// Whether the item's present state belongs to what was asked for.
    pub(crate) fn fits_item(&self, item: &ItemRecord) -> bool {
        self.about.is_none_or(|id| id == item.id)
            && self.device.as_ref().is_none_or(|d| *d == item.device)
            && self
                .project
                .as_ref()
                .is_none_or(|p| item.to.project.as_ref() == Some(p))
    }
}
