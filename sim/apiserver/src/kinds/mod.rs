//! Built-in and custom kinds.

pub(crate) mod builtin;
mod cells;
pub(crate) mod certificates;
pub(crate) mod checks;
pub(crate) mod columns;
pub(crate) mod custom;
pub(crate) mod defaults;
pub(crate) mod definition;
mod kind;
mod pods;
pub(crate) mod services;
mod structural;
mod tables;
pub(crate) mod validation;

pub(crate) use kind::{Kind, Origin, qualified, storage_key};
