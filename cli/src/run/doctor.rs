//! `rdcp doctor`: the library's findings, and whether rails to a host come up.

use std::path::PathBuf;

use rdcp::client::{Client, TransportReport};
use rdcp::doctor::{self, Questions};
use rdcp::options::TransportChoice;
use rdcp::{Error, ErrorKind};

use super::{client_options, fail, farewell, server_name};
use crate::args::ConnectionArgs;
use crate::exit::End;
use crate::output::Output;

pub(super) async fn examine(
    host: Option<(String, u16)>,
    paths: Vec<PathBuf>,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let mut questions = Questions::default();
    questions.paths = paths;
    questions.host.clone_from(&host);
    let looking = tokio::task::spawn_blocking(move || doctor::examine(&questions));
    let mut diagnosis = match looking.await {
        Ok(diagnosis) => diagnosis,
        Err(error) => {
            let error = Error::new(ErrorKind::Internal, "the examination ended").with_source(error);
            return fail(output, &error);
        }
    };
    if let Some((host, port)) = host {
        let outcome = rails(&host, port, connection, output).await;
        diagnosis.add_rails(&server_name(&host, port), &outcome);
    }
    output.diagnosis(&diagnosis);
    if diagnosis.would_use_rdma {
        End::DONE
    } else {
        End::of(ErrorKind::TransportUnavailable)
    }
}

async fn rails(
    host: &str,
    port: u16,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<TransportReport, Error> {
    let server = server_name(host, port);
    let mut options = client_options(connection, None, None, output.is_interactive(), server);
    options.transport = TransportChoice::Rdma;
    let client = Client::connect(host, port, options).await?;
    let report = client.transport().await;
    farewell(client).await;
    report
}
