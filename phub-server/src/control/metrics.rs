//! `GET /metrics`: the hub's figures in the text format of Prometheus (OpenMetrics 1.0).
//!
//! A page is made from the reply of `GET /v1/hub`, when it is requested. No counter exists only for this page, so the
//! hub does no work for the page between requests. `docs/metrics.md` has the list of all names; a test compares it with
//! a page.

use std::sync::atomic::AtomicU64;

use pbox_core::control::{
    CoreReply, HubReply, JobReply, JobState, LATENESS_BOUNDS_US, LatenessReply, LinkReply, LostReply,
    NicReply, RankReply, ReadersReply, RoundsReply,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// The content type of a page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The kernel's name of the counter of sent data, in units of 4 bytes. `RECEIVED` names the counter of received data.
const SENT: &str = "port_xmit_data";
const RECEIVED: &str = "port_rcv_data";

/// The labels of a figure, each with its name and value.
type Labels = Vec<(&'static str, String)>;

/// Returns the page of metrics.
pub fn page(hub: &HubReply) -> String {
    let mut page = Page(Registry::with_prefix("phub"));
    page.of_the_hub(hub);
    page.of_cores(&hub.cores);
    page.of_nics(&hub.nics);
    page.of_jobs(&hub.jobs);
    let mut text = String::new();
    encode(&mut text, &page.0).expect("a String takes all text");
    text
}

/// The metrics that the page has so far.
struct Page(Registry);

impl Page {
    fn gauge(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        values: impl Iterator<Item = (Labels, f64)>,
    ) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        values.for_each(|(labels, value)| {
            family.get_or_create_owned(&labels).set(value);
        });
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }

    fn counter(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        values: impl Iterator<Item = (Labels, f64)>,
    ) {
        let family = Family::<Labels, Counter<f64, AtomicU64>>::default();
        values.for_each(|(labels, value)| {
            family.get_or_create_owned(&labels).inc_by(value);
        });
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }

    fn of_the_hub(&mut self, hub: &HubReply) {
        let only = |value: f64| std::iter::once((Labels::new(), value));
        let build = vec![
            ("version", hub.version.clone()),
            ("protocol", hub.protocol.to_string()),
            ("kernels", hub.kernels.clone()),
        ];
        self.gauge("build_info", None, "1, with labels that name the program", std::iter::once((build, 1.0)));
        self.gauge(
            "resident_memory",
            Some(Unit::Bytes),
            "Memory of the hub's process",
            only(hub.rss_bytes as f64),
        );
        self.gauge(
            "draining",
            None,
            "1 if the hub takes no more jobs",
            only(f64::from(u8::from(hub.draining))),
        );
        let states = ["gathering", "running", "failed"];
        let jobs = states.map(|state| {
            let count = hub.jobs.iter().filter(|job| state_of(job) == state).count();
            (vec![("state", state.to_owned())], count as f64)
        });
        self.gauge("jobs", None, "Jobs that the hub has, by state", jobs.into_iter());
        let counts = &hub.counts;
        for (name, help, count) in [
            ("joins", "Workers, and hubs below, that joined", counts.joins),
            ("joins_refused", "Joins that were refused", counts.refused_joins),
            ("relinks", "Times that a worker lost its links and asked to make new links", counts.relinks),
            ("jobs_failed", "Jobs that failed", counts.failed_jobs),
        ] {
            self.counter(name, None, help, only(count as f64));
        }
        let LostReply { link, silent, late, other } = counts.lost;
        let lost = [("link", link), ("silent", silent), ("late", late), ("other", other)];
        let lost = lost.map(|(cause, count)| (vec![("cause", cause.to_owned())], count as f64));
        self.counter("workers_lost", None, "Members that were lost, by cause", lost.into_iter());
    }

    fn of_cores(&mut self, cores: &[CoreReply]) {
        let of = |value: fn(&CoreReply) -> f64| {
            let labelled = move |(number, core): (usize, &CoreReply)| {
                let labels = vec![
                    ("core", number.to_string()),
                    ("cpu", core.cpu.to_string()),
                    ("nic", core.nic.clone().unwrap_or_default()),
                ];
                (labels, value(core))
            };
            cores.iter().enumerate().map(labelled)
        };
        self.counter(
            "core_chunks",
            None,
            "Chunks summed, stepped and sent back",
            of(|core| core.chunks as f64),
        );
        self.counter(
            "core_chunk",
            Some(Unit::Bytes),
            "Bytes of the chunks that were summed, stepped and sent back; a chunk counts once for all its workers",
            of(|core| core.chunk_bytes as f64),
        );
        self.counter(
            "core_working",
            Some(Unit::Seconds),
            "Time of turns with work",
            of(|core| seconds(core.busy_ns)),
        );
        self.counter(
            "core_waiting",
            Some(Unit::Seconds),
            "Time in which the core's thread waited for work, polling or asleep",
            of(|core| seconds(core.waiting_ns)),
        );
        self.counter(
            "core_asleep",
            Some(Unit::Seconds),
            "The part of waiting in which the core's thread slept",
            of(|core| seconds(core.asleep_ns)),
        );
        self.counter(
            "core_held_back",
            None,
            "Answers and sums that waited before they were posted: their link had no room or its credit was used up",
            of(|core| core.held_back as f64),
        );
    }

    fn of_nics(&mut self, nics: &[NicReply]) {
        let labels = |nic: &NicReply| vec![("nic", nic.device.clone()), ("port", nic.port.to_string())];
        for (name, help, counter) in [
            ("nic_sent", "Bytes that the port of a NIC sent, for any program", SENT),
            ("nic_received", "Bytes that the port of a NIC received", RECEIVED),
        ] {
            let words = nics.iter().filter_map(|nic| Some((labels(nic), *nic.counters.get(counter)?)));
            let bytes = words.map(|(labels, words)| (labels, 4.0 * words as f64));
            self.counter(name, Some(Unit::Bytes), help, bytes);
        }
        let events = nics.iter().flat_map(|nic| {
            let events = nic.counters.iter().filter(|(name, _)| ![SENT, RECEIVED].contains(&name.as_str()));
            events.map(move |(name, &count)| {
                let mut labels = labels(nic);
                labels.push(("event", name.clone()));
                (labels, count as f64)
            })
        });
        self.counter(
            "nic_events",
            None,
            "Events that the port of a NIC counted, by the kernel's names",
            events,
        );
    }

    fn of_links(&mut self, jobs: &[&JobReply]) {
        type Bytes = fn(&LinkReply) -> u64;
        let figures: [(&str, &str, Bytes); 2] = [
            ("link_sent", "Bytes to a worker over a NIC of the hub", |link| link.sent_bytes),
            ("link_received", "Bytes from a worker over a NIC of the hub", |link| link.received_bytes),
        ];
        for (name, help, bytes) in figures {
            let members = jobs.iter().flat_map(|job| job.members.iter().map(|member| (&job.name, member)));
            let links = members.flat_map(|(job, member)| {
                member.links.iter().map(move |link| {
                    let labels = vec![
                        ("job", job.clone()),
                        ("rank", member.rank.to_string()),
                        ("transport", member.transport.clone().unwrap_or_default()),
                        ("nic", link.nic.clone()),
                    ];
                    (labels, bytes(link) as f64)
                })
            });
            self.counter(name, Some(Unit::Bytes), help, links);
        }
    }

    fn of_jobs(&mut self, jobs: &[JobReply]) {
        let alive: Vec<&JobReply> = jobs.iter().filter(|job| !job.has_failed()).collect();
        let of = |value: fn(&JobReply) -> Option<f64>| {
            alive.iter().filter_map(move |job| Some((vec![("job", job.name.clone())], value(job)?)))
        };
        self.gauge("job_workers", None, "Ranks of the job", of(|job| Some(f64::from(job.workers))));
        self.gauge("job_members", None, "Workers that have joined", of(|job| Some(job.members.len() as f64)));
        self.gauge(
            "job_round",
            None,
            "The round of the job, updated every few seconds",
            of(|job| Some(f64::from(job.round.0))),
        );
        self.gauge(
            "job_model",
            Some(Unit::Bytes),
            "Bytes of the model: what each worker pushes in a round without compression",
            of(|job| Some(job.model_bytes as f64)),
        );
        self.gauge(
            "job_promised",
            Some(Unit::Bytes),
            "Memory that is reserved for the job",
            of(|job| Some(job.promised_bytes as f64)),
        );
        self.gauge(
            "job_checkpoint_round",
            None,
            "The first round of a job that continues from the last checkpoint",
            of(|job| Some(f64::from(job.checkpoint.as_ref()?.round.0))),
        );
        self.gauge(
            "job_checkpoint_size",
            Some(Unit::Bytes),
            "Length of the last checkpoint",
            of(|job| Some(job.checkpoint.as_ref()?.bytes as f64)),
        );
        self.gauge(
            "job_checkpoint_duration",
            Some(Unit::Seconds),
            "Time that the write of the last checkpoint took",
            of(|job| Some(job.checkpoint.as_ref()?.milliseconds as f64 / 1e3)),
        );
        self.gauge(
            "job_checkpoint_failed",
            None,
            "1 if the last attempt at a checkpoint failed or was skipped",
            of(|job| Some(f64::from(u8::from(job.checkpoint_error.is_some())))),
        );
        self.gauge(
            "job_gradient_norm",
            None,
            "Norm of the workers' mean gradient, in the last round that the hub examined",
            of(|job| Some(job.gradients.as_ref()?.last.norm)),
        );
        self.counter(
            "job_gradients_not_finite",
            None,
            "Values of gradients that were infinite or NaN, in the rounds that the hub examined",
            of(|job| Some(job.gradients.as_ref()?.not_finite as f64)),
        );
        self.counter(
            "job_rounds_left_out",
            None,
            "Rounds that changed nothing, because their mean gradient was not finite (skip_nonfinite) or was a spike (skip_spikes)",
            of(|job| Some(job.gradients.as_ref()?.skipped? as f64)),
        );
        self.of_readers(&alive);
        let of_rank = |job: &JobReply, rank: u32| vec![("job", job.name.clone()), ("rank", rank.to_string())];
        let silent = alive.iter().flat_map(|job| {
            job.members.iter().map(|member| (of_rank(job, member.rank), member.silent_ms as f64 / 1e3))
        });
        self.gauge("worker_silent", Some(Unit::Seconds), "Time since the worker's last heartbeat", silent);
        self.of_links(&alive);
        let late = alive
            .iter()
            .flat_map(|job| job.held_up_by.iter().map(|late| (of_rank(job, late.rank), late.seconds as f64)));
        self.gauge(
            "worker_late",
            Some(Unit::Seconds),
            "Time without progress of a worker that delays a round",
            late,
        );
        let of_rounds = |value: fn(&RoundsReply, &RankReply) -> f64| {
            let ranks = alive.iter().flat_map(|job| job.rounds.iter().map(move |rounds| (job, rounds)));
            ranks.flat_map(move |(job, rounds)| {
                rounds.ranks.iter().map(move |rank| (of_rank(job, rank.rank), value(rounds, rank)))
            })
        };
        self.gauge(
            "worker_last",
            Some(Unit::Other("ratio".to_owned())),
            "Share of the last rounds, at most 200, in which the worker was waited for longest",
            of_rounds(|rounds, rank| f64::from(rank.last) / f64::from(rounds.window.max(1))),
        );
        self.gauge(
            "worker_lateness",
            Some(Unit::Seconds),
            "Median over the last rounds of the time for which the hub waited for the worker",
            of_rounds(|_, rank| rank.median_us as f64 / 1e6),
        );
        let ranks = alive.iter().flat_map(|job| job.rounds.iter().map(move |rounds| (job, rounds)));
        let all = ranks.flat_map(|(job, rounds)| {
            rounds.ranks.iter().map(move |rank| (of_rank(job, rank.rank), rank.all))
        });
        self.0.register_collector(Box::new(Lateness(all.collect())));
    }

    fn of_readers(&mut self, jobs: &[&JobReply]) {
        let of = |value: fn(&ReadersReply) -> f64| {
            let labelled =
                move |job: &&JobReply| Some((vec![("job", job.name.clone())], value(job.readers.as_ref()?)));
            jobs.iter().filter_map(labelled)
        };
        self.gauge(
            "job_readers",
            None,
            "Readers that get weights or a state now",
            of(|read| read.now as f64),
        );
        self.counter(
            "job_reads",
            None,
            "Reads of weights or a state that began",
            of(|read| read.reads as f64),
        );
        let help = "Copies of the state for readers; readers that wait at the same time share a copy";
        self.counter("job_read_copies", None, help, of(|read| read.copies as f64));
        let help = "Bytes that went to readers";
        self.counter("job_read", Some(Unit::Bytes), help, of(|read| read.bytes as f64));
        let help = "Bytes that were not sent to readers, because deltas took their place";
        self.counter("job_read_saved", Some(Unit::Bytes), help, of(|read| read.saved as f64));
        self.counter("job_reads_refused", None, "Reads that got no state", of(|read| read.refused as f64));
        self.counter("job_reads_done", None, "Reads that got the whole state", of(|read| read.done as f64));
        let help =
            "Time from the end of a round to the last byte of its state, summed over the reads that are done";
        self.counter("job_read_delay", Some(Unit::Seconds), help, of(|read| read.delay_ns as f64 / 1e9));
        let help = "The round of the newest copy for readers";
        self.gauge("job_read_round", None, help, of(|read| f64::from(read.round.0)));
        let lags = jobs.iter().filter_map(|job| Some((job, job.readers.as_ref()?.followed?)));
        let lags = lags.flat_map(|(job, followed)| {
            [("newest", followed.newest), ("slowest", followed.slowest)].map(|(which, round)| {
                let labels = vec![("job", job.name.clone()), ("follower", which.to_owned())];
                (labels, f64::from(job.round.0.saturating_sub(round.0)))
            })
        });
        let help = "Rounds by which the newest state of a follower is behind the job";
        self.gauge("job_follower_lag", Some(Unit::Other("rounds".to_owned())), help, lags);
    }
}

/// The lateness of each rank, as a histogram over rounds. The histograms of the library would need each value
/// separately.
#[derive(Debug)]
struct Lateness(Vec<(Labels, LatenessReply)>);

impl Collector for Lateness {
    fn encode(&self, mut encoder: DescriptorEncoder) -> std::fmt::Result {
        let mut family = encoder.encode_descriptor(
            "worker_round_lateness",
            "Rounds, by the time for which the hub waited for the worker",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (labels, all) in &self.0 {
            let bounds = LATENESS_BOUNDS_US.iter().map(|&us| f64::from(us) / 1e6).chain([f64::MAX]);
            let buckets: Vec<(f64, u64)> = bounds.zip(all.rounds).collect();
            let count = all.rounds.iter().sum();
            let sum = all.sum_us as f64 / 1e6;
            family.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

fn state_of(job: &JobReply) -> &'static str {
    match job.state {
        JobState::Gathering { .. } => "gathering",
        JobState::Running => "running",
        JobState::Failed { .. } => "failed",
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pbox_core::Round;
    use pbox_core::control::{
        CheckpointReply, CountsReply, Followed, GradientNorm, GradientsReply, Late, MemberReply,
    };

    use super::*;

    /// The endings of the names of a histogram's lines.
    const OF_HISTOGRAMS: [&str; 3] = ["_bucket", "_count", "_sum"];

    #[test]
    fn every_figure_is_in_the_table_of_the_page_and_no_other() {
        let checkpoint = CheckpointReply { round: Round(3), bytes: 4, milliseconds: 5, error_before: None };
        let late = Late { rank: 1, who: "worker 1".into(), round: Round(4), chunks: 2, seconds: 31 };
        let core = CoreReply {
            cpu: 0,
            nic: None,
            chunks: 1,
            chunk_bytes: 2,
            busy_ns: 3,
            waiting_ns: 4,
            asleep_ns: 3,
            held_back: 5,
        };
        let mut all = LatenessReply::default();
        all.add(250, 3);
        let rank = RankReply { rank: 1, last: 50, late_us: 900, median_us: 250, greatest_us: 1000, all };
        let counters = [("port_xmit_data", 250), ("port_rcv_data", 1), ("out_of_sequence", 3)];
        let counters = counters.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let nic = NicReply { device: "mlx5_0".into(), port: 1, mbps: None, lost: None, counters };
        let rounds = RoundsReply {
            round: Round(4),
            per_second: 1.0,
            window: 200,
            waits_for: Vec::new(),
            waited_us: 0,
            ranks: vec![rank],
            recent: Vec::new(),
        };
        let last = GradientNorm { round: Round(65), norm: 0.5, not_finite: 0 };
        let gradients =
            GradientsReply { every: 64, not_finite: 3, skipped: Some(2), last, recent: Vec::new() };
        let job = JobReply {
            name: "job".into(),
            state: JobState::Running,
            workers: 2,
            members: vec![MemberReply {
                rank: 0,
                silent_ms: 1500,
                address: None,
                host: None,
                transport: Some("tcp".into()),
                links: vec![LinkReply { nic: "eth0".into(), sent_bytes: 10, received_bytes: 11 }],
                latest: None,
            }],
            round: Round(4),
            equal_before: None,
            promised_bytes: 7,
            above: Vec::new(),
            keys: 1,
            model_bytes: 8,
            checkpoint: Some(checkpoint),
            checkpoint_error: None,
            held_up_by: vec![late],
            checkpoint_warning: None,
            verdict: String::new(),
            rounds: Some(rounds),
            gradients: Some(gradients),
            readers: Some(ReadersReply {
                now: 1,
                reads: 9,
                copies: 2,
                bytes: 900,
                saved: 90,
                refused: 4,
                done: 8,
                delay_ns: 500_000_000,
                round: Round(3),
                followed: Some(Followed { newest: Round(3), slowest: Round(1) }),
            }),
        };
        let reason = "a test".to_owned();
        let failed = JobReply { state: JobState::Failed { reason, hub_stops: false }, ..job.clone() };
        let lost = LostReply::default();
        let hub = HubReply {
            protocol: 1,
            protocol_lowest: None,
            version: "0".into(),
            id: String::new(),
            kernels: "none".into(),
            rss_bytes: 9,
            draining: false,
            machine: None,
            transports: Vec::new(),
            counts: CountsReply {
                joins: 5,
                refused_joins: 6,
                lost: LostReply { link: 7, ..lost },
                failed_jobs: 8,
                relinks: 2,
            },
            cores: vec![core],
            nics: vec![nic],
            jobs: vec![job, failed],
            refusals: Vec::new(),
            timeline: false,
        };
        let page = page(&hub);
        let figures: BTreeSet<&str> = page
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .map(|name| OF_HISTOGRAMS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name))
            .collect();
        let list = include_str!("../../../docs/metrics.md").lines();
        let named = list.filter_map(|line| line.strip_prefix("- `")?.split('`').next());
        let list: BTreeSet<&str> =
            named.filter(|name| name.starts_with("phub_") && !name.ends_with('*')).collect();
        assert_eq!(figures, list);
        for line in [
            "phub_jobs{state=\"failed\"} 1.0",
            "phub_joins_refused_total{} 6.0",
            "phub_relinks_total{} 2.0",
            "phub_workers_lost_total{cause=\"link\"} 7.0",
            "phub_job_gradients_not_finite_total{job=\"job\"} 3.0",
            "phub_job_rounds_left_out_total{job=\"job\"} 2.0",
            "phub_job_read_bytes_total{job=\"job\"} 900.0",
            "phub_job_reads_done_total{job=\"job\"} 8.0",
            "phub_job_read_saved_bytes_total{job=\"job\"} 90.0",
            "phub_job_read_delay_seconds_total{job=\"job\"} 0.5",
            "phub_job_reads_refused_total{job=\"job\"} 4.0",
            "phub_job_follower_lag_rounds{job=\"job\",follower=\"newest\"} 1.0",
            "phub_job_follower_lag_rounds{job=\"job\",follower=\"slowest\"} 3.0",
            "phub_nic_sent_bytes_total{nic=\"mlx5_0\",port=\"1\"} 1000.0",
            "phub_nic_events_total{nic=\"mlx5_0\",port=\"1\",event=\"out_of_sequence\"} 3.0",
            "phub_link_sent_bytes_total{job=\"job\",rank=\"0\",transport=\"tcp\",nic=\"eth0\"} 10.0",
            "phub_link_received_bytes_total{job=\"job\",rank=\"0\",transport=\"tcp\",nic=\"eth0\"} 11.0",
            "phub_worker_silent_seconds{job=\"job\",rank=\"0\"} 1.5",
            "phub_worker_late_seconds{job=\"job\",rank=\"1\"} 31.0",
            "phub_worker_last_ratio{job=\"job\",rank=\"1\"} 0.25",
            "phub_worker_lateness_seconds{job=\"job\",rank=\"1\"} 0.00025",
            "phub_worker_round_lateness_seconds_bucket{le=\"0.0001\",job=\"job\",rank=\"1\"} 0",
            "phub_worker_round_lateness_seconds_bucket{le=\"0.001\",job=\"job\",rank=\"1\"} 3",
            "phub_worker_round_lateness_seconds_bucket{le=\"+Inf\",job=\"job\",rank=\"1\"} 3",
        ] {
            assert!(page.lines().any(|seen| seen == line), "{line} is not in\n{page}");
        }
    }
}
