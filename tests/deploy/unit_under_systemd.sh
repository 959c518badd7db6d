# Runs systemd as the first process of a system of its own: this machine's files under a layer that is thrown away, with
# the shipped unit in it. Only the unit and what looks at it are started. To be called within new mount, process and
# control group namespaces: unit_under_systemd.sh SCRATCH CHECKOUT SITE PYTHON PORT HTTP_PORT; the look goes to SCRATCH/report.
set -eu
scratch=$1 checkout=$2 site=$3 python=$4 port=$5 http_port=$6
layer=$scratch/layer
mkdir "$layer" "$scratch/out"
mount -t tmpfs tmpfs "$layer"
root=$layer/root
mkdir "$layer/upper" "$layer/work" "$root"
# 77: this machine does not give what a system of its own needs.
mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$root" || exit 77

# What a boot could change of the real machine is fresh, read-only or not there.
mount -t proc proc "$root/proc"
mount -o bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" || exit 77
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
    set -- $device
    mknod -m 666 "$root/dev/$1" c "$2" "$3"
done
mkdir "$root/dev/shm" "$root/dev/pts" "$root/dev/mqueue" "$root/dev/hugepages"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t mqueue mqueue "$root/dev/mqueue"
mount -t tmpfs tmpfs "$root/dev/hugepages"

# Programs where the sandbox does not hide them: it hides homes and /tmp.
mkdir -p "$root/opt/cocoon-node/bin" "$root/opt/python" "$root/opt/checkout" "$root/opt/site" "$root/out"
mount --bind "$python" "$root/opt/python"
mount --bind "$checkout" "$root/opt/checkout"
mount --bind "$site" "$root/opt/site"
mount --bind "$scratch/out" "$root/out"
cat >"$root/opt/cocoon-node/bin/cocoon-node-agent" <<'END'
#!/usr/bin/env -S LD_LIBRARY_PATH=/opt/python/lib /opt/python/bin/python3
import sys
sys.path[:0] = ["/opt/site", "/opt/checkout", "/opt/checkout/proto"]
sys.dont_write_bytecode = True
from agent.cli import main
main()
END
chmod 755 "$root/opt/cocoon-node/bin/cocoon-node-agent"

# As the installation page says.
rm -rf "$root/var/lib/cocoon" "$root/var/lib/cocoon-node" "$root/etc/cocoon-node"
mkdir -p "$root/etc/cocoon-node" "$root/var/lib/cocoon/snapshots"
cp "$checkout/deploy/systemd/cocoon-node-agent.service" "$root/etc/systemd/system/"
{
    cat "$checkout/deploy/systemd/agent.env.example"
    echo "VK_NODE_NAME=host-1"
    echo "COCOON_NODE_LISTEN=127.0.0.1:$port,unix:/var/lib/cocoon-node/run/agent.sock"
    echo "COCOON_NODE_HTTP_LISTEN=127.0.0.1:$http_port"
} >"$root/etc/cocoon-node/agent.env"

# Nothing else of this machine's units is pulled in.
ln -sf /dev/null "$root/etc/systemd/system/network-online.target"
mkdir "$root/etc/systemd/system/cocoon-node-agent.service.d"
cat >"$root/etc/systemd/system/cocoon-node-agent.service.d/test.conf" <<'END'
[Unit]
DefaultDependencies=no
RequiresMountsFor=
[Service]
StandardOutput=append:/out/agent.log
StandardError=append:/out/agent.log
END
cat >"$root/etc/systemd/system/look.service" <<'END'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sh /look.sh >/out/draft 2>&1; mv /out/draft /out/report; systemctl exit 0'
END
printf '[Unit]\nDefaultDependencies=no\nWants=look.service\n' >"$root/etc/systemd/system/look.target"
cat >"$root/look.sh" <<'END'
agent="/opt/cocoon-node/bin/cocoon-node-agent"
settings="--config /etc/cocoon-node/agent.env"
systemctl start cocoon-node-agent; echo "start=$?"
systemctl show cocoon-node-agent -p ActiveState,Type,NRestarts
pid=$(systemctl show cocoon-node-agent -p MainPID --value)
sed -n 's/^\(CapEff\|CapBnd\|NoNewPrivs\|Seccomp\):[[:space:]]*/\1=/p' "/proc/$pid/status"
for path in /etc /usr /var/lib /var/lib/cocoon /var/lib/cocoon/snapshots /var/lib/cocoon-node; do
    nsenter -t "$pid" -m sh -c "touch $path/.test && rm $path/.test" 2>/dev/null; echo "write $path=$?"
done
echo "homes=$(nsenter -t "$pid" -m sh -c 'ls -A /root /home' | grep -v : | grep -c .)"
mkdir /var/lib/cocoon/snapshots/.pending-a
printf '{"version":1,"config":{"id":"abc","name":"vk-ns-web"}}' >/var/lib/cocoon/snapshots/.pending-a/snapshot.json
mv /var/lib/cocoon/snapshots/.pending-a /var/lib/cocoon/snapshots/vk-ns-web
$agent snapshots retain vk-ns-web $settings >/dev/null; echo "retain=$?"
$agent snapshots release vk-ns-web $settings >/dev/null; echo "release=$?"
$agent snapshots purge vk-ns-web --yes $settings >/dev/null; echo "purge=$?"
test -e /var/lib/cocoon/snapshots/vk-ns-web; echo "is there=$?"
$agent doctor $settings; echo "doctor=$?"
systemctl stop cocoon-node-agent; echo "stop=$?"
echo "stopped=$(systemctl show cocoon-node-agent -p Result --value)"
echo VK_RESERVE_PERCENT=500 >>/etc/cocoon-node/agent.env
systemctl start cocoon-node-agent; echo "wrong settings=$?"
sleep 3
echo "afterwards=$(systemctl show cocoon-node-agent -p ActiveState --value)"
END

mkdir "$root/old"
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=look.target --show-status=no
