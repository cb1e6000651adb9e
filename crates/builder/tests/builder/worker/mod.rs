//! The worker on real job servers, with a simulated cloud.

mod bed;
mod contract;
mod dib;
mod hostile;
mod killed;
mod leftovers;
mod rules;
mod space;
mod steps;
