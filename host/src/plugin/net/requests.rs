//! What an adapter's HTTP requests leave behind in the host: nothing.
//!
//! A guest hands the options of a request over with it. WASI's own `handle` copies them and lets them be, so that they stay until the
//! instance ends: memory for each request, and after a million of them the instance could make no more. Here they go once they are used.

use crate::plugin::state::State;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_http::p2::bindings::http::outgoing_handler::Host as _;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Host as _};
use wasmtime_wasi_http::p2::types;
use wasmtime_wasi_http::{RequestOptions, WasiHttpCtxView, WasiHttpView as _};

/// The interface as `wasmtime-wasi-http` names it; the linker takes it for every other patch version of WASI 0.2 too.
const OUTGOING_HANDLER: &str = "wasi:http/outgoing-handler@0.2.12";

type Request = Resource<types::HostOutgoingRequest>;
type Options = Option<Resource<RequestOptions>>;
type Answer = Result<Resource<types::HostFutureIncomingResponse>, ErrorCode>;

/// Replaces `handle` by one that takes the options.
pub(in crate::plugin) fn add_tidy_handle(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    linker.instance(OUTGOING_HANDLER)?.func_wrap("handle", |mut store, (request, options): (Request, Options)| {
        Ok((handle(store.data_mut().http(), request, options)?,))
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

fn handle(mut http: WasiHttpCtxView<'_>, request: Request, options: Options) -> wasmtime::Result<Answer> {
    let same = options.as_ref().map(|options| Resource::new_own(options.rep()));
    let answer = http.handle(request, same);
    if let Some(options) = options {
        // Gone already, where WASI's own takes them.
        let _ = http.table.delete(options);
    }
    match answer {
        Ok(response) => Ok(Ok(response)),
        Err(error) => Ok(Err(http.convert_error_code(error)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::component::ResourceTable;
    use wasmtime_wasi_http::WasiHttpCtx;
    use wasmtime_wasi_http::p2::bindings::http::types::{HostFields, HostFutureIncomingResponse, HostOutgoingRequest, Scheme};
    use wasmtime_wasi_http::{Error, WasiBody, WasiHttpHooks};

    /// Knows what it is to send, and never has an answer.
    struct Silence(Vec<Option<RequestOptions>>);

    type Sending = Box<dyn Future<Output = Result<(), Error>> + Send>;

    impl WasiHttpHooks for Silence {
        fn send_request(
            &mut self,
            _: http::Request<WasiBody>,
            options: Option<RequestOptions>,
            _: Sending,
        ) -> Box<dyn Future<Output = wasmtime_wasi_http::Result<(http::Response<WasiBody>, Sending)>> + Send> {
            self.0.push(options);
            Box::new(std::future::pending())
        }
    }

    #[test]
    fn what_is_replaced_goes_by_that_name() {
        let mut linker = Linker::<State>::new(&wasmtime::Engine::default());
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).unwrap();
        let again = linker.instance(OUTGOING_HANDLER).unwrap().func_wrap("handle", |_, ()| Ok(()));
        assert!(again.is_err(), "there is nothing to replace");
    }

    struct Ground(WasiHttpCtx, ResourceTable, Silence);

    impl Ground {
        fn view(&mut self) -> WasiHttpCtxView<'_> {
            WasiHttpCtxView { ctx: &mut self.0, table: &mut self.1, hooks: &mut self.2 }
        }
    }

    #[tokio::test]
    async fn nothing_is_left_of_a_request_but_its_answer() {
        let mut ground = Ground(WasiHttpCtx::new(), ResourceTable::new(), Silence(Vec::new()));
        for scheme in [Scheme::Http, Scheme::Other("gopher".to_owned())] {
            let fields = HostFields::new(&mut ground.view()).unwrap();
            let request = HostOutgoingRequest::new(&mut ground.view(), fields).unwrap();
            let same = || Resource::new_borrow(request.rep());
            ground.view().set_scheme(same(), Some(scheme.clone())).unwrap().unwrap();
            ground.view().set_authority(same(), Some("127.0.0.1:9".to_owned())).unwrap().unwrap();
            ground.view().set_path_with_query(same(), Some("/".to_owned())).unwrap().unwrap();
            let options = ground.view().table.push(RequestOptions::default()).unwrap();
            let answer = handle(ground.view(), request, Some(options)).unwrap();
            match scheme {
                Scheme::Http => HostFutureIncomingResponse::drop(&mut ground.view(), answer.unwrap()).unwrap(),
                _ => assert!(matches!(answer, Err(ErrorCode::HttpProtocolError)), "{answer:?}"),
            }
            assert!(ground.1.is_empty(), "{:?}", ground.1);
        }
        assert_eq!(ground.2.0, [Some(RequestOptions::default())]);
    }
}
