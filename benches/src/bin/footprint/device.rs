//! Setup on a device's pool: how long it waits for a worker, when nobody else is there and when execution is offered ten times
//! what the device can do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tollgate_benches::entrants::{WORKERS, Work};
use tollgate_benches::stats::median;
use tollgate_device::host::HostDevice;
use tollgate_device::{DeviceHandle, DeviceKind, DevicePool, DeviceProfile};

use crate::figures::Figures;

/// Execution seats, and callers that want one.
const SEATS: u32 = WORKERS as u32 - 1;
const CALLERS: u32 = 10 * SEATS;
/// What each of them has its worker do.
const EXECUTION: Work = Work::busy(Duration::from_micros(200));
/// Setups, and the pause between two.
const SETUPS: usize = 300;
const PAUSE: Duration = Duration::from_millis(2);
/// What the system may leave a thread waiting that is ready to run while all cores are busy: a tick at 250 Hz.
const QUANTUM_US: f64 = 4_000.0;

pub(crate) fn measure(runtime: &Runtime, figures: &mut Figures) -> anyhow::Result<()> {
    let device = HostDevice::builder().build()?;
    // room for setups beside the callers
    let profile = DeviceProfile::new(CALLERS + 8, WORKERS as u32);
    let pool = DevicePool::builder(device, profile).build()?;
    let handle = pool.handle();

    let idle = runtime.block_on(waits(&handle))?;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> =
        (0..CALLERS).map(|_| runtime.spawn(execute(handle.clone(), Arc::clone(&stop)))).collect();
    let busy = runtime.block_on(waits(&handle));
    stop.store(true, Ordering::Relaxed);
    let executed: anyhow::Result<Vec<u64>> =
        callers.into_iter().map(|caller| runtime.block_on(caller)?).collect();
    let (executed, busy) = (executed?.iter().sum::<u64>(), busy?);
    anyhow::ensure!(executed > 0, "nothing was executed beside the setups");

    let (calm, pressed) = (median(idle.iter().copied()), median(busy.iter().copied()));
    figures.insert("device_setup_idle_us", calm);
    figures.insert("device_setup_busy_us", pressed);
    figures.insert("device_setup_busy_p99_us", percentile(busy, 0.99));
    figures.insert("device_setup_over_quantum", (pressed - 1.2 * calm) / QUANTUM_US);
    Ok(())
}

/// How long each setup waited for a worker, in microseconds.
async fn waits(handle: &DeviceHandle<HostDevice>) -> anyhow::Result<Vec<f64>> {
    let mut waits = Vec::with_capacity(SETUPS);
    for _ in 0..SETUPS {
        tokio::time::sleep(PAUSE).await;
        let asked = Instant::now();
        let setup = handle.job("setup").kind(DeviceKind::SETUP);
        let began = setup.run(async { Instant::now() }).await.context("a setup was refused")?;
        waits.push(1e6 * began.duration_since(asked).as_secs_f64());
    }
    Ok(waits)
}

/// Executes, one job after the other, and says how many.
async fn execute(handle: DeviceHandle<HostDevice>, stop: Arc<AtomicBool>) -> anyhow::Result<u64> {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        handle.job("execution").run(async { EXECUTION.run() }).await?;
        done += 1;
    }
    Ok(done)
}

fn percentile(mut samples: Vec<f64>, part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let at = (part * samples.len() as f64) as usize;
    samples.get(at.min(samples.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
