//! The device layer in a run: asked in time, never waited for longer than a reader would.

use std::{path::PathBuf, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    cli::Trace,
    clock,
    engine::{Command, Control},
    event::Event,
    evidence::Evidence,
    sensors::nvml::NvmlClient,
};

/// Longest wait for NVML while tracing goes on.
const NVML_LIMIT: Duration = Duration::from_secs(2);
/// And at the end, when somebody waits for the prompt.
const NVML_LAST_LIMIT: Duration = Duration::from_millis(400);
/// Questions to the device layer that may wait.
const ASKS: usize = 4;

/// What is asked of the device layer.
enum Ask {
    /// A snapshot, with a fresh answer in it.
    Snapshot,
    /// An answer for the last report; tells when it is there.
    Last(oneshot::Sender<()>),
}

/// The device layer: a task of its own, since an answer may take its whole limit.
#[derive(Clone)]
pub struct DeviceLayer {
    asks: mpsc::Sender<Ask>,
}

impl DeviceLayer {
    /// Starts it, with a first question.
    pub fn start(flags: &Trace, control: Control) -> Self {
        let mut client = (!flags.sources.no_nvml).then(|| {
            NvmlClient::start(PathBuf::from("/proc/self/exe"), flags.sources.nvml.clone())
        });
        let (asks, mut inbox) = mpsc::channel(ASKS);
        tokio::spawn(async move {
            answer(&mut client, &control, NVML_LIMIT).await;
            while let Some(ask) = inbox.recv().await {
                let asked = clock::now();
                match ask {
                    Ask::Snapshot => {
                        answer(&mut client, &control, NVML_LIMIT).await;
                        control.send(Command::Snapshot { asked });
                    }
                    Ask::Last(done) => {
                        answer(&mut client, &control, NVML_LAST_LIMIT).await;
                        let _ = done.send(());
                    }
                }
            }
        });
        Self { asks }
    }

    /// Asks for a snapshot. While many are waiting already, another would say the same.
    pub fn snapshot(&self) {
        let _ = self.asks.try_send(Ask::Snapshot);
    }

    /// Waits for a last answer, but not for one that takes too long.
    pub async fn last(&self) {
        let (done, answered) = oneshot::channel();
        if self.asks.try_send(Ask::Last(done)).is_ok() {
            let _ = timeout(NVML_LAST_LIMIT, answered).await;
        }
    }
}

async fn answer(client: &mut Option<NvmlClient>, control: &Control, limit: Duration) {
    let sample = match client {
        Some(client) => client.sample(limit).await,
        None => Evidence::not_available("switched off by --no-nvml"),
    };
    control.send(Command::Event(Box::new(Event::Devices {
        at: clock::now(),
        sample,
    })));
}
