package owner

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestEtcdIsAnother replaces etcd's data by those of a backup, or by none, while hosts run that
// know better: nobody answers beside the owner, soon there is one, and when that dies there is
// another.
func TestEtcdIsAnother(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	m := f.etcd.Members[0]
	first := f.settled()
	m.Stop()
	backup := m.Backup()
	m.Start()
	other := f.hosts[(slices.Index(f.hosts, first)+1)%3]
	moved := func() bool { // once it is known to be there again
		return first.ns.Command(t.Context(), first.bin+"/vipctl", "vip", "move", vip.String(), "--to", other.ns.Name, "--config", first.config()).Run() == nil
	}
	wait.For(t, wait.Patience, "the VIP to be elsewhere than the backup says", func() bool { return moved() || f.owner() == other })
	for _, g := range f.hosts { // one that never was at this etcd would miss nothing in the restored one
		wait.For(t, wait.Patience, g.ns.Name+" to be at etcd", func() bool { s := g.status(); return s != nil && s.Etcd == "" })
	}

	// The owner does not hear of it: the others must not take what it has, though the backup gives
	// that to nobody who lives.
	f.becomes("restored from a backup", func() { m.Restore(backup) }, other)
	f.becomes("wiped", m.Wipe, nil)
}

// becomes makes another of etcd, of which one host may hear later than the others.
func (f *fleet) becomes(what string, replace func(), late *gateway) {
	f.t.Helper()
	f.settled()
	m, before, p := f.etcd.Members[0], f.sessions(), f.probe()
	anew := func() (n int) {
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
		wait.For(f.t, wait.Patience, "new sessions of the others", func() bool { return anew() == 2 })
		time.Sleep(3 * time.Second) // in which they must not take what it has: they wait for 0.8 s after a start
		cutFromEtcd.mend(late)
	}
	wait.For(f.t, wait.Patience, "new sessions after etcd was "+what, func() bool { return anew() == 3 })
	for _, g := range f.hosts {
		g.event("etcd was wiped, or restored from a backup")
	}
	owner := f.settled()
	f.answers(vip, vip6)
	f.judge(p, "etcd "+what)
	p = f.probe()
	signal(syscall.SIGKILL)(owner)
	wait.For(f.t, wait.Patience, "another owner, after etcd was "+what, func() bool { o := f.owner(); return o != nil && o != owner })
	f.answers(vip, vip6)
	f.judge(p, "kill -9 of the owner after etcd was "+what)
	owner.start()
}
