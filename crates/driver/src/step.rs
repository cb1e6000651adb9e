//! State machines that survive their process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::Opaque;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::ids::ExternalId;

/// How far a machine is: an enum of the driver, which the caller stores without understanding it.
///
/// A step changes the state as it goes, so that an error or a cancelled step leaves behind what is known.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    /// How the cloud calls what is being made, as soon as that is known. Callers put it into the record.
    pub external_id: Option<ExternalId>,
    data: Opaque,
    /// Lost when the state is stored: what comes from a store may have been acted on.
    #[serde(skip)]
    fresh: bool,
}

impl State {
    /// The beginning of a machine whose record was made just now, by this process. Everybody else begins
    /// with the default.
    pub fn fresh() -> Self {
        Self {
            fresh: true,
            ..Self::default()
        }
    }

    /// True at most once, and only if nothing can have been done yet, so that looking for what an earlier
    /// run left behind would be a wasted call. Take it before the first call that makes something.
    pub fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// The driver's own enum; its default before anything was written.
    pub fn read<T: DeserializeOwned + Default>(&self) -> Result<T, Error> {
        if self.data.is_null() {
            return Ok(T::default());
        }
        self.data.decode().map_err(|cause| {
            Error::permanent("the stored state of this machine cannot be read; delete the node")
                .because(cause)
        })
    }

    pub fn write(&mut self, data: &impl Serialize) -> Result<(), Error> {
        self.data = Opaque::encode(data).map_err(|cause| {
            Error::permanent("the state of this machine cannot be stored").because(cause)
        })?;
        Ok(())
    }
}

/// What one step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    Done(T),
    /// Store the state, wait, take the next step.
    Wait(Wait),
}

impl<T> Step<T> {
    pub fn wait(at_most: Duration) -> Self {
        Self::Wait(Wait {
            at_most,
            event: None,
        })
    }

    /// The next step can be taken as soon as the state is stored.
    pub fn go_on() -> Self {
        Self::wait(Duration::ZERO)
    }
}

/// When to come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Come back after this time at the latest.
    pub at_most: Duration,
    /// Come back earlier if [`Driver::event`](crate::Driver::event) says that this happened.
    pub event: Option<EventKey>,
}

/// Something that a driver will notice by itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EventKey(Arc<str>);

impl EventKey {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    enum Machine {
        #[default]
        Start,
        Made {
            since: u32,
        },
    }

    #[test]
    fn a_stored_state_is_not_fresh() {
        let mut state = State::fresh();
        let stored: State = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        assert!(!stored.clone().take_fresh());
        assert!(state.take_fresh());
        assert!(!state.take_fresh());
    }

    #[test]
    fn a_state_survives_the_store() {
        let mut state = State::fresh();
        assert_eq!(state.read::<Machine>().unwrap(), Machine::Start);
        state.write(&Machine::Made { since: 7 }).unwrap();
        state.external_id = Some("abc".into());
        let stored: State = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        assert_eq!(
            stored.read::<Machine>().unwrap(),
            Machine::Made { since: 7 }
        );
        assert_eq!(stored.external_id, Some("abc".into()));
    }

    #[test]
    fn a_state_of_another_program_is_an_error() {
        let state: State =
            serde_json::from_str(r#"{"external_id": null, "data": {"Flying": 1}}"#).unwrap();
        assert!(state.read::<Machine>().is_err());
    }
}
