//! What stands behind the options in `--help` and on the manual's pages: examples and statuses.

/// What stands below the options in `--help`: examples, then the statuses.
pub(super) fn long_tail(examples: &str) -> String {
    format!(
        "Examples:\n{examples}\n\nExit status:\n{}",
        crate::exit::table_text().trim_end()
    )
}

/// The examples of a page, which the manual shows as well.
pub(crate) fn examples(command: &str) -> &'static str {
    match command {
        "pull" => PULL_EXAMPLES,
        "push" => PUSH_EXAMPLES,
        "cp" => CP_EXAMPLES,
        "ls" => LS_EXAMPLES,
        "stat" => STAT_EXAMPLES,
        "sum" => SUM_EXAMPLES,
        "verify" => VERIFY_EXAMPLES,
        "rm" => RM_EXAMPLES,
        "mkdir" => MKDIR_EXAMPLES,
        "clean" => CLEAN_EXAMPLES,
        "keygen" => KEYGEN_EXAMPLES,
        "ping" => PING_EXAMPLES,
        "status" => STATUS_EXAMPLES,
        "bench" => BENCH_EXAMPLES,
        "doctor" => DOCTOR_EXAMPLES,
        "completions" => COMPLETIONS_EXAMPLES,
        "man" => MAN_EXAMPLES,
        _ => MAIN_EXAMPLES,
    }
}

pub(super) const MAIN_EXAMPLES: &str = "  \
  rdcp ls gpu7:/                              what gpu7 offers
  rdcp pull gpu7:/data/model.safetensors .    fetch a file
  rdcp push -a results/ gpu7:/scratch/me/     send what is in results
  rdcp verify results gpu7:/scratch/me        compare both by content
  rdcp pull -a ssh://me@gpu7/home/me/run .    where no rdcpd runs: ssh starts one";
pub(super) const PULL_EXAMPLES: &str = "  \
  rdcp pull gpu7:/data/model.safetensors .       a file, into this directory
  rdcp pull -r gpu7:/ckpt/step-9000 /mnt/nvme    a tree, as /mnt/nvme/step-9000
  rdcp pull -a gpu7:/ckpt/step-9000/ here        what is in it, into here, with all metadata
  rdcp pull -an --delete gpu7:/data/set/ set     what a mirror of it would change here, and why
  rdcp pull gpu7:/data/log.zst - | zstdcat       a file, to standard output
  rdcp pull -r --json gpu7:/data/set . | jq .    told as JSON lines
  rdcp pull -r ssh://gpu7/srv/set .              by a daemon that ssh starts there and that ends with it";
pub(super) const PUSH_EXAMPLES: &str = "  \
  rdcp push disk.img gpu7:/images/            a file, into a directory
  rdcp push -a run-17 gpu7:/results           a tree, as run-17 in the export results
  rdcp push -a -u run-17/ gpu7:/results/x     what is in it, unless newer files are there
  rdcp push -a --delete --exclude '*.tmp' run-17/ gpu7:/results/x
                                              the same there as here, but for *.tmp
  rdcp push --mkpath a b gpu7:/data/new/dir/  several files, into a directory that is made";
pub(super) const CP_EXAMPLES: &str = "  \
  rdcp cp gpu7:/data/x.tar .        pull
  rdcp cp -r run-17 gpu7:/results   push";
pub(super) const LS_EXAMPLES: &str = "  \
  rdcp ls gpu7:/             the exports
  rdcp ls -l gpu7:/data      what is in one, with sizes
  rdcp ls -r gpu7:/data/run  all below a directory";
pub(super) const STAT_EXAMPLES: &str = "  \
  rdcp stat gpu7:/data/model.safetensors
  rdcp stat --json gpu7:/data/run | jq .size";
pub(super) const SUM_EXAMPLES: &str = "  \
  rdcp sum gpu7:/data/x.tar                                    BLAKE3, computed on gpu7
  rdcp sum --hash sha256 -r gpu7:/data/run | sha256sum -c      check ./run against gpu7
  rdcp sum -r run                                              local files";
pub(super) const VERIFY_EXAMPLES: &str = "  \
  rdcp verify run gpu7:/data/run
  rdcp verify -q x.tar gpu7:/data/x.tar || echo differs";
pub(super) const RM_EXAMPLES: &str = "  \
  rdcp rm gpu7:/scratch/old.tar
  rdcp rm -r gpu7:/scratch/run-3";
pub(super) const MKDIR_EXAMPLES: &str = "  \
  rdcp mkdir gpu7:/scratch/run-4
  rdcp mkdir -p gpu7:/scratch/a/b/c";
pub(super) const CLEAN_EXAMPLES: &str = "  \
  rdcp clean -n /srv/data                    what is left there, and what would go
  rdcp clean /srv/data gpu7:/scratch         remove what nobody goes on with
  rdcp clean --older-than 24h gpu7:/scratch  sooner than after seven days";
pub(super) const PING_EXAMPLES: &str = "  \
  rdcp ping gpu7
  rdcp ping -n 100 --json gpu7:20471";
pub(super) const STATUS_EXAMPLES: &str = "  \
  rdcp status gpu7
  rdcp status --json gpu7 | jq 'select(.type == \"session\") | .transfers[]'";
pub(super) const BENCH_EXAMPLES: &str = "  \
  rdcp bench gpu7
  rdcp bench --transport rdma --time 10s gpu7          RDMA or an error
  rdcp bench --json gpu7 | jq 'select(.type == \"bench\")'";
pub(super) const DOCTOR_EXAMPLES: &str = "  \
  rdcp doctor                               this machine alone
  rdcp doctor --path /srv/data gpu7         and how /srv/data is served, and rails to gpu7
  rdcp doctor --json | jq .would_use_rdma";
pub(super) const KEYGEN_EXAMPLES: &str = "  \
  rdcp keygen                                      the line for the server's authorized keys
  rdcp keygen | ssh store 'cat >> /etc/rdcp/authorized_keys'
  rdcp keygen --identity ./backup.pem";
pub(super) const COMPLETIONS_EXAMPLES: &str = "  \
  rdcp completions bash > /etc/bash_completion.d/rdcp
  rdcp completions zsh > ~/.zfunc/_rdcp
  rdcp completions fish > ~/.config/fish/completions/rdcp.fish";
pub(super) const MAN_EXAMPLES: &str = "  \
  rdcp man | man -l -
  rdcp man pull | man -l -
  rdcp man failures | man -l -           what went wrong elsewhere, and what is done here
  rdcp man --dir /usr/share/man/man1
  rdcpd --man | man -l -                 that of the daemon";
