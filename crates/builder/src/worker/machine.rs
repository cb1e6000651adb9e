//! Takes the machines of drivers to their end.
//!
//! Here a machine lives as long as its process. If that is killed, whoever asks again begins with a state that may
//! have been acted on, and the driver finds by the tags what there is.

use std::time::Duration;

use nodeyard_driver::{
    Driver, Error, ErrorClass, ImageTarget, State, Step, UploadOrder, UploadedImage, Wait,
};

use super::now;

/// Errors that may pass, in all the steps of one machine together.
const PATIENCE: u32 = 6;

const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The state stays with the caller, who may have to clean up after an error or a time-out.
pub async fn upload(
    driver: &dyn Driver,
    order: &UploadOrder,
    state: &mut State,
) -> Result<UploadedImage, Error> {
    let mut pace = Pace::of(driver);
    loop {
        let step = driver.upload(order, state, now()).await;
        if let Some(image) = pace.after(step).await? {
            return Ok(image);
        }
    }
}

pub async fn delete(driver: &dyn Driver, target: &ImageTarget) -> Result<(), Error> {
    let mut state = State::default();
    let mut pace = Pace::of(driver);
    loop {
        let step = driver.delete_image(target, &mut state, now()).await;
        if pace.after(step).await?.is_some() {
            return Ok(());
        }
    }
}

struct Pace<'d> {
    driver: &'d dyn Driver,
    failures: u32,
}

impl<'d> Pace<'d> {
    fn of(driver: &'d dyn Driver) -> Self {
        Self {
            driver,
            failures: 0,
        }
    }

    /// Waits until the next step can be taken; what the machine came to if there is none.
    async fn after<T>(&mut self, step: Result<Step<T>, Error>) -> Result<Option<T>, Error> {
        match step {
            Ok(Step::Done(done)) => return Ok(Some(done)),
            Ok(Step::Wait(Wait { at_most, event })) => {
                let happened = async {
                    match &event {
                        Some(event) => self.driver.event(event).await,
                        None => std::future::pending().await,
                    }
                };
                let _ = tokio::time::timeout(at_most, happened).await;
            }
            Err(error) if error.class() == ErrorClass::Retry && self.failures < PATIENCE => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a cloud is asked again"
                );
                tokio::time::sleep(FIRST_PAUSE * 2_u32.saturating_pow(self.failures)).await;
                self.failures += 1;
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}
