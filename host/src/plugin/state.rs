//! What the host keeps for one instance: its WASI context, its resources, and the call that it is in.

use super::bindings::{log, outbox, progress, secrets};
use super::call::{CurrentGate, Gate, Notes};
use super::clock::Skew;
use super::convert;
use super::denials::Denials;
use super::grants::Policy;
use super::identity::Identity;
use super::limits::InstanceLimits;
use super::log::{AdapterLog, Lines, Tail};
use super::net::http::{HttpClient, HttpHooks};
use super::net::sockets::Sockets;
use super::net::tls::Tls;
use super::sql_host::OpenTransactions;
use crate::config::model::Limits;
use crate::domain::Outcome;
use crate::secrets::Secrets;
use crate::sql::Databases;
use std::sync::Arc;
use tokio::sync::mpsc;
use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};
use wasmtime_wasi_tls::{WasiTlsCtx, WasiTlsCtxView, WasiTlsView};

/// Random bytes that a guest may ask for at once: keys and ids need tens.
const MAX_RANDOM_BYTES: u64 = 64 << 10;

/// Headers of a request or a response take at least this much in the host, however little a call may hand over: wasmtime's default.
const MIN_FIELD_BYTES: usize = 128 << 10;

/// What all instances of an adapter share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) identity: Identity,
    pub(super) limits: Limits,
    pub(super) policy: Arc<Policy>,
    pub(super) denials: Arc<Denials>,
    pub(super) log: Arc<AdapterLog>,
    pub(super) http: Arc<HttpClient>,
    pub(super) tls: Tls,
    pub(super) databases: Databases,
    pub(super) secrets: Secrets,
    pub(super) skew: Skew,
}

/// Where early outcomes of the running `publish` call go.
#[derive(Debug)]
pub(super) struct Reports {
    sender: mpsc::UnboundedSender<(usize, Outcome)>,
    /// By message: whether its outcome was reported.
    seen: Vec<bool>,
    /// Whether failures get what the host has noted in the call.
    is_noted: bool,
}

impl Reports {
    pub(super) fn new(sender: mpsc::UnboundedSender<(usize, Outcome)>, messages: usize, is_noted: bool) -> Self {
        Self { sender, seen: vec![false; messages], is_noted }
    }
}

/// The data of one Store.
pub(super) struct State {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: HttpHooks,
    tls: WasiTlsCtx,
    current: CurrentGate,
    pub(super) table: ResourceTable,
    pub(super) limits: InstanceLimits,
    pub(super) shared: Arc<Shared>,
    pub(super) tcp: Sockets,
    pub(super) gate: Gate,
    pub(super) notes: Notes,
    pub(super) tail: Tail,
    output: [Lines; 2],
    reports: Option<Reports>,
    pub(super) transactions: OpenTransactions,
}

impl State {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (notes, tail, current) = (Notes::default(), Tail::default(), CurrentGate::shut());
        let output = [Lines::stdout(Arc::clone(&shared.log)), Lines::stderr(Arc::clone(&shared.log), tail.clone())];
        let tcp = Sockets::new(Arc::clone(&shared.policy), Arc::clone(&shared.denials), notes.clone());
        let [stdout, stderr] = output.clone();
        let mut wasi = WasiCtx::builder();
        // No file system, no environment, no arguments, no standard input: none of it is ever added.
        wasi.stdout(stdout).stderr(stderr).max_random_size(MAX_RANDOM_BYTES).wall_clock(shared.skew);
        tcp.configure(&mut wasi);
        let mut http = WasiHttpCtx::new();
        // More traps instead of being an error that a guest could turn into a verdict, and the default (128 KiB) is less than a message
        // may have: what one call may hand over is a limit already.
        http.set_field_size_limit(shared.limits.returned_bytes.max(MIN_FIELD_BYTES));
        Self {
            wasi: wasi.build(),
            http,
            hooks: HttpHooks { client: Arc::clone(&shared.http), gate: Gate::shut(), notes: notes.clone() },
            tls: shared.tls.context(current.clone(), notes.clone()),
            current,
            table: ResourceTable::new(),
            limits: InstanceLimits::new(&shared.limits),
            tcp,
            gate: Gate::shut(),
            notes,
            tail,
            output,
            reports: None,
            transactions: OpenTransactions::default(),
            shared,
        }
    }

    /// A call begins.
    pub(super) fn begin(&mut self, gate: Gate, reports: Option<Reports>) {
        self.notes.clear();
        self.tail.take();
        self.hooks.gate = gate.clone();
        self.current.set(gate.clone());
        self.gate = gate;
        self.reports = reports;
    }

    /// The call is over: what it left open is closed.
    pub(super) fn end(&mut self) {
        self.gate = Gate::shut();
        self.hooks.gate = Gate::shut();
        self.current.set(Gate::shut());
        self.reports = None;
        self.roll_back_open_transactions();
        self.finish_output();
    }

    /// Writes what the guest printed without a line break at its end.
    pub(super) fn finish_output(&self) {
        self.output.iter().for_each(Lines::finish);
        self.shared.log.report_dropped();
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.hooks }
    }
}

impl WasiTlsView for State {
    fn tls(&mut self) -> WasiTlsCtxView<'_> {
        WasiTlsCtxView { ctx: &mut self.tls, table: &mut self.table }
    }
}

impl outbox::Host for State {}

impl log::Host for State {
    fn write(&mut self, level: log::Level, text: String, fields: Vec<(String, String)>) -> wasmtime::Result<()> {
        self.shared.log.write(level, &text, &fields);
        Ok(())
    }
}

impl secrets::Host for State {
    async fn get(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        let granted = self.shared.policy.check_secret(&name);
        if let Err(denial) = granted {
            self.shared.denials.tell(&self.notes, &denial.to_string());
            return Ok(None);
        }
        match self.shared.secrets.read(&name).await {
            Ok(value) => Ok(Some(value)),
            Err(reason) => {
                self.shared.denials.tell(&self.notes, &reason.to_string());
                Ok(None)
            }
        }
    }
}

impl progress::Host for State {
    fn report(&mut self, index: u32, outcome: outbox::Outcome) -> wasmtime::Result<()> {
        let Some(reports) = &mut self.reports else {
            return Err(wasmtime::Error::msg("it reported an outcome outside of publish"));
        };
        let messages = reports.seen.len();
        let place = usize::try_from(index).ok().and_then(|index| Some((index, reports.seen.get_mut(index)?)));
        let Some((index, seen)) = place else {
            return Err(wasmtime::Error::msg(format!("it reported an outcome of message {index} of a batch of {messages}")));
        };
        if !std::mem::replace(seen, true) {
            let outcome = convert::outcome_in(outcome, reports.is_noted.then_some(&self.notes));
            // Nobody listens any more: the call was given up, and will be told so at its end.
            let _ = reports.sender.send((index, outcome));
        }
        Ok(())
    }
}

/// Everything that the host offers to every adapter. All of WASI 0.2 is there, because language runtimes import it whether they
/// use it or not; what it can reach is a matter of grants.
pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    super::net::requests::add_tidy_handle(linker)?;
    super::net::sockets::add_name_lookup(linker)?;
    super::net::streams::add_prompt_drop(linker)?;
    // A proposal of WASI that is not final yet: `wasi:tls@0.2.0-draft`.
    wasmtime_wasi_tls::p2::add_to_linker(linker, wasmtime_wasi_tls::p2::LinkOptions::default().tls(true))?;
    outbox::add_to_linker::<State, HasSelf<State>>(linker, |state| state)?;
    log::add_to_linker::<State, HasSelf<State>>(linker, |state| state)?;
    secrets::add_to_linker::<State, HasSelf<State>>(linker, |state| state)
}
