//! `rdcp bench`: each transport in a session of its own, measured by the library.

use rdcp::client::{Bench, BenchReport, Client};
use rdcp::options::TransportChoice;
use rdcp::{Error, ErrorKind};

use super::{client_options, fail, farewell, server_name};
use crate::exit::End;
use crate::job::BenchJob;
use crate::output::{Measured, Output};

/// All that there are, best first.
const TRANSPORTS: [(&str, TransportChoice); 3] = [
    ("rdma", TransportChoice::Rdma),
    ("tcp", TransportChoice::Tcp),
    ("local", TransportChoice::Local),
];

pub(super) async fn bench(job: &BenchJob, output: &mut Output) -> End {
    let forced = job.transport != TransportChoice::Auto;
    for (transport, choice) in TRANSPORTS {
        if forced && choice != job.transport {
            continue;
        }
        let result = match measure(job, choice, output.is_interactive()).await {
            Err(error) if forced || error.kind() != ErrorKind::TransportUnavailable => {
                return fail(output, &error);
            }
            Ok(mut report) => {
                if !forced && choice == TransportChoice::Tcp {
                    // Each has a session in which only it may be used; nobody asked for tcp.
                    "each transport is measured by itself".clone_into(&mut report.reason);
                }
                Ok(report)
            }
            Err(error) => Err(error.to_string()),
        };
        output.measured(&Measured {
            server: server_name(&job.host, job.port),
            transport,
            result,
        });
    }
    End::DONE
}

async fn measure(
    job: &BenchJob,
    transport: TransportChoice,
    interactive: bool,
) -> Result<BenchReport, Error> {
    let (host, port) = (job.host.as_str(), job.port);
    let server = server_name(host, port);
    let mut options = client_options(&job.connection, job.streams, None, interactive, server);
    options.transport = transport;
    let client = Client::connect(host, port, options).await?;
    let mut bench = Bench::default();
    bench.time = job.time;
    bench.bytes_max = job.bytes_max.unwrap_or(bench.bytes_max);
    let report = client.bench(&bench).await;
    farewell(client).await;
    report
}
