# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154  # the variables are set by slurm
#
# The configuration files of dev/lab slurm.  Sourced by it; uses its options, base, entry and conf, and address_of.
#
#   node_names                     print the nodes' names
#   write_config DBD_PORT CTLD_PORT
#                                  write all files below $base/etc
#   system_tables_sql              print what makes MariaDB's own tables
#   mariadb_options, daemon_path   how daemons are started

# Small, and without fsync: kill -9 loses nothing, a power failure may.
# shellcheck disable=SC2034
readonly mariadb_options=(--innodb-flush-log-at-trx-commit=2 --innodb-flush-method=nosync --skip-log-bin
    --innodb-buffer-pool-size=32M --innodb-log-file-size=16M --innodb-lock-wait-timeout=900 --skip-name-resolve)
# shellcheck disable=SC2034
readonly daemon_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

node_names() {
    local i
    for ((i = 1; i <= nodes; i++)); do echo "$prefix$i"; done
}

# AccountingStoragePass: slurmctld finds a private munge socket for slurmdbd only there.
# config_overrides: nodes may have more CPUs than this machine.
slurm_conf_defaults() {
    cat <<END
ClusterName=$cluster
SlurmctldHost=$(hostname -s)($(address_of hub))
SlurmctldPort=$ctld_port
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket=$base/munge/socket
StateSaveLocation=$base/state
SlurmdSpoolDir=$base/spool/%n
SlurmctldPidFile=$base/run/slurmctld.pid
SlurmdPidFile=$base/run/slurmd@%n.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdLogFile=$base/log/slurmd@%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SlurmctldSyslogDebug=quiet
SlurmdSyslogDebug=quiet
PlugStackConfig=$base/etc/plugstack.conf
ProctrackType=proctrack/$proctrack
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
ReturnToService=2
KillWait=2
OverTimeLimit=0
MinJobAge=300
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=30
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$(address_of hub)
AccountingStoragePort=$dbd_port
AccountingStoragePass=$base/munge/socket
AccountingStoreFlags=job_comment
END
    [ "$job_container" = none ] || echo "JobContainerType=job_container/$job_container"
    [ "$prolog_flags" = none ] || echo "PrologFlags=$prolog_flags"
}

# A key given twice makes every Slurm command print an error, so the user's line replaces ours.
write_slurm_conf() {
    local node number=0
    {
        awk -F= 'FILENAME == ARGV[1] { seen[tolower($1)] = 1; next } !(tolower($1) in seen)' \
            "${extra_conf:-/dev/null}" <(slurm_conf_defaults)
        [ -z "$extra_conf" ] || cat "$extra_conf"
        for node in $(node_names); do
            number=$((number + 1))
            echo "NodeName=$node NodeHostname=$(hostname -s) NodeAddr=$(address_of $number) Port=$(free_port "$entry")" \
                "CPUs=$cpus RealMemory=4000 State=UNKNOWN"
        done
        echo "PartitionName=main Nodes=${prefix}[1-$nodes] Default=YES MaxTime=INFINITE State=UP"
    } >"$conf"
}

write_slurmdbd_conf() {
    install -o slurm -g slurm -m 600 /dev/null "$base/etc/slurmdbd.conf"
    cat >"$base/etc/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$base/munge/socket
DbdHost=$(hostname -s)
DbdAddr=$(address_of hub)
DbdPort=$dbd_port
SlurmUser=slurm
LogFile=$base/log/slurmdbd.log
PidFile=$base/run/slurmdbd.pid
DebugLevel=info
DebugLevelSyslog=quiet
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct
END
}

# As mariadb-install-db, without its help texts and sys schema, which take the most time.
system_tables_sql() {
    printf '%s\n' "CREATE DATABASE mysql;" "USE mysql;" "SET @auth_root_socket='root';"
    cat /usr/share/mysql/mysql_system_tables.sql /usr/share/mysql/mysql_system_tables_data.sql
}

write_config() {
    local dbd_port=$1 ctld_port=$2
    write_slurm_conf
    write_slurmdbd_conf
    printf '%s\n' "# written by dev/lab slurm" "${plugstack[@]}" >"$base/etc/plugstack.conf"
    if [ "$cgroup_version" = v1 ]; then
        printf '%s\n' CgroupPlugin=cgroup/v1 CgroupAutomount=no "${cgroup_lines[@]}"
    else
        printf '%s\n' CgroupPlugin=cgroup/v2 "IgnoreSystemd=$([ "$systemd" = no ] && echo yes || echo no)" "${cgroup_lines[@]}"
    fi >"$base/etc/cgroup.conf"
    # slurmd appends the node's name
    [ "$job_container" = none ] || printf '%s\n' AutoBasePath=true "BasePath=$base/tmp" >"$base/etc/job_container.conf"
    printf '%s;\n' "CREATE DATABASE IF NOT EXISTS slurm_acct" \
        "CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket" \
        "GRANT ALL ON slurm_acct.* TO slurm@localhost" >"$base/etc/init.sql"
    printf '%s\n' "Cluster - '$cluster'" "Parent - 'root'" "Account - 'lab':Description='lab':Organization='lab'" \
        "Parent - 'lab'" "User - '$user':DefaultAccount='lab'" >"$base/etc/accounts"
}
