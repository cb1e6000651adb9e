//! Uploads and deletes images with a driver and retries transient failures.

use std::time::Duration;

use nodeyard_driver::{
    Driver, Error, ImageTarget, Images, Progress, Retries, UploadOrder, UploadedImage,
};
use tokio::time::sleep;

/// The maximum number of retries of calls that failed with [`ErrorClass::Retry`](nodeyard_driver::ErrorClass::Retry).
const RETRY_LIMIT: u32 = 6;

const FIRST_PAUSE: Duration = Duration::from_millis(500);

pub async fn upload(
    driver: &dyn Driver,
    order: &UploadOrder,
    progress: &Progress,
) -> Result<UploadedImage, Error> {
    let images = images(driver)?;
    let mut order = order.clone();
    let mut retries = Retries::new(RETRY_LIMIT, FIRST_PAUSE);
    loop {
        retries.start();
        match images.upload(&order, progress).await {
            Ok(image) => return Ok(image),
            Err(error) => pause(&mut retries, error, "failed to upload image; retrying").await?,
        }
        order.first_attempt = false;
    }
}

pub async fn delete_image(driver: &dyn Driver, target: &ImageTarget) -> Result<(), Error> {
    let images = images(driver)?;
    let mut retries = Retries::new(RETRY_LIMIT, FIRST_PAUSE);
    loop {
        retries.start();
        match images.delete_image(target).await {
            Ok(()) => return Ok(()),
            Err(error) => pause(&mut retries, error, "failed to delete image; retrying").await?,
        }
    }
}

fn images(driver: &dyn Driver) -> Result<&dyn Images, Error> {
    driver
        .images()
        .ok_or_else(|| Error::unsupported("store images"))
}

/// Waits until the next try is due, or returns the error if there is to be none.
async fn pause(retries: &mut Retries, error: Error, message: &str) -> Result<(), Error> {
    let Some(pause) = retries.after(&error) else {
        return Err(error);
    };
    tracing::warn!(
        error = &error as &dyn std::error::Error,
        retry_in = ?pause,
        "{message}"
    );
    sleep(pause).await;
    Ok(())
}
