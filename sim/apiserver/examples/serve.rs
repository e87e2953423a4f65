//! Serves clusters until standard input ends: `serve FOLDER [HOW_MANY [bare]]`; `bare`: Deployments never
//! become ready.

use std::{env, fs, io::Read, path::PathBuf};

use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{Options, Server, ServerOptions, Token, User};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: serve FOLDER [HOW_MANY]")?);
    let many: u64 = args.next().map_or(Ok(1), |text| text.parse())?;
    let bare = args.next().is_some();
    fs::create_dir_all(&folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let drain = Drain::new();
        let server = Server::start(ServerOptions::default(), &drain).await?;
        for number in 0..many {
            let name = format!("runtime-{number}");
            let cluster = server.add(
                &name,
                Options {
                    seed: number,
                    ready_after: if bare { None } else { Options::default().ready_after },
                    ..Options::default()
                },
            )?;
            cluster.allow_token(Token("simulated".to_owned()), User::admin("admin"));
            fs::write(folder.join(format!("{name}.kubeconfig")), server.kubeconfig(&name, "simulated"))?;
        }
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        Ok(())
    })
}
