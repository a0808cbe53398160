//! One HTTP POST by wasi:http, as a function that blocks.

use crate::{Answer, Post, Settings};
use outhaul_sdk::{Failure, FailureCode, Outcome};
use std::io::Write;
use std::time::Duration;
use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{ErrorCode, Fields, Method, OutgoingBody, OutgoingRequest, RequestOptions, Scheme};

/// Through the host, which allows what the operator grants.
#[derive(Debug, Default)]
pub(crate) struct WasiHttp;

impl Post for WasiHttp {
    fn post(&mut self, settings: &Settings, headers: &[(String, Vec<u8>)], body: &[u8], timeout: Duration) -> Result<Answer, Outcome> {
        // Without it the body goes in chunks, which not every receiver reads.
        let length = ("content-length".to_owned(), body.len().to_string().into_bytes());
        let fields = Fields::from_list(&[headers, &[length]].concat())
            .map_err(|error| Outcome::Reject(Failure::invalid_message(format!("a header cannot be sent: {error}"))))?;
        let request = OutgoingRequest::new(fields);
        let unfit = || Outcome::Retry(Failure::invalid_configuration("`url` cannot be requested"));
        request.set_method(&Method::Post).map_err(|()| unfit())?;
        request.set_scheme(Some(if settings.secure { &Scheme::Https } else { &Scheme::Http })).map_err(|()| unfit())?;
        request.set_authority(Some(&settings.authority)).map_err(|()| unfit())?;
        request.set_path_with_query(Some(&settings.path)).map_err(|()| unfit())?;
        let outgoing = request.body().map_err(|()| unfit())?;
        let options = RequestOptions::new();
        let limit = Some(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        options.set_connect_timeout(limit).map_err(|()| unfit())?;
        options.set_first_byte_timeout(limit).map_err(|()| unfit())?;

        let waiting = handle(request, Some(options)).map_err(|error| no_answer(settings, &error))?;
        // What goes wrong while writing shows in the answer, or in there being none.
        if let Ok(mut stream) = outgoing.write() {
            let _ = stream.write_all(body).and_then(|()| Write::flush(&mut stream));
        }
        let _ = OutgoingBody::finish(outgoing, None);
        waiting.subscribe().block();
        match waiting.get() {
            Some(Ok(Ok(response))) => {
                let retry_after = response.headers().get("retry-after").into_iter().next();
                Ok(Answer { status: response.status(), retry_after })
            }
            Some(Ok(Err(error))) => Err(no_answer(settings, &error)),
            None | Some(Err(())) => Err(Outcome::Retry(Failure::of(FailureCode::Network, "the answer was taken already"))),
        }
    }
}

fn no_answer(settings: &Settings, error: &ErrorCode) -> Outcome {
    let (code, what) = match error {
        ErrorCode::HttpRequestDenied | ErrorCode::DestinationIpProhibited => {
            (FailureCode::InvalidConfiguration, "the host does not allow this request; its log has the line to add".to_owned())
        }
        ErrorCode::DnsTimeout
        | ErrorCode::ConnectionTimeout
        | ErrorCode::ConnectionReadTimeout
        | ErrorCode::ConnectionWriteTimeout
        | ErrorCode::HttpResponseTimeout => (FailureCode::Timeout, "no answer in time".to_owned()),
        other => (FailureCode::Network, other.to_string()),
    };
    Outcome::Retry(Failure::of(code, format!("{}: {what}", settings.authority)))
}
