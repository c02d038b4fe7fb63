package owner

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestEtcdDataReplaced restores etcd from a backup, and then wipes it, while the hosts are running.
// Two hosts must never answer at the same time, and a single owner must remain. If that owner dies,
// another host must take over.
func TestEtcdDataReplaced(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	m := f.etcd.Members[0]
	first := f.waitForOwner()
	m.Stop()
	backup := m.Backup()
	m.Start()
	other := f.hosts[(slices.Index(f.hosts, first)+1)%3]
	moved := func() bool { // returns true once the destination has registered again
		return first.ns.Command(t.Context(), first.bin+"/vipctl", "vip", "move", vip.String(), "--to", other.ns.Name, "--config", first.config()).Run() == nil
	}
	wait.For(t, wait.Patience, "an owner that differs from the backup", func() bool { return moved() || f.owner() == other })
	for _, g := range f.hosts { // a host that has never read this etcd could not detect the restore
		wait.For(t, wait.Patience, g.ns.Name+" to reach etcd", func() bool { s := g.status(); return s != nil && s.Etcd == "" })
	}

	// The owner does not detect the restore. The other hosts must not take over the owner's VIPs,
	// even though the backup names another owner.
	f.replaceEtcd("restored from a backup", func() { m.Restore(backup) }, other)
	f.replaceEtcd("wiped", m.Wipe, nil)
}

// replaceEtcd replaces etcd's data. If late is not nil, that host detects the change later than all
// other hosts.
func (f *fleet) replaceEtcd(what string, replace func(), late *gateway) {
	f.t.Helper()
	f.waitForOwner()
	m, before, p := f.etcd.Members[0], f.sessions(), f.probe()
	renewed := func() (n int) {
		for i, s := range f.sessions() {
			if s != "" && i < len(before) && s != before[i] {
				n++
			}
		}
		return n
	}
	m.Stop()
	if late != nil {
		cutFromEtcd.fault(late)
	}
	replace()
	m.Start()
	if late != nil {
		wait.For(f.t, wait.Patience, "new sessions of the others", func() bool { return renewed() == 2 })
		time.Sleep(3 * time.Second) // the other hosts must not take over in this time; a new session waits 0.8 s
		cutFromEtcd.repair(late)
	}
	wait.For(f.t, wait.Patience, "new sessions after etcd was "+what, func() bool { return renewed() == 3 })
	for _, g := range f.hosts {
		g.event("etcd was wiped, or restored from a backup")
	}
	owner := f.waitForOwner()
	f.answers(vip, vip6)
	f.judge(p, "etcd "+what)
	p = f.probe()
	signal(syscall.SIGKILL)(owner)
	wait.For(f.t, wait.Patience, "another owner, after etcd was "+what, func() bool { o := f.owner(); return o != nil && o != owner })
	f.answers(vip, vip6)
	f.judge(p, "kill -9 of the owner after etcd was "+what)
	owner.start()
}
