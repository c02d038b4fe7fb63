package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vipd/test/lab"
)

// TestPackages installs, upgrades, downgrades, removes and purges the packages of "make
// package-test", under a systemd and with traffic. The machine has its own package databases,
// because all writes go to its overlay.
func TestPackages(t *testing.T) {
	folder := os.Getenv("VIPD_PACKAGES")
	if folder == "" {
		t.Skip("needs packages of two versions: make package-test builds them")
	}
	lab.Need(t, "dpkg", "nft")
	g := newGateway(t, func(t *testing.T, to string) {
		if err := os.CopyFS(filepath.Join(to, "packages"), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}, map[string]string{"usr/sbin/policy-rc.d": "#!/bin/sh\nexit 0\n"}) // images of containers don't let packages start services
	t.Run("deb", func(t *testing.T) {
		g := g.inSubtest(t)
		const dpkg = "dpkg --no-triggers " // otherwise triggers index the manual pages of other packages each time
		for _, mode := range []string{"nftables", "iptables", "userspace"} {
			g.packaged(mode, dpkg+"-i /packages/old/*_amd64.deb", dpkg+"-i /packages/new/*_amd64.deb", dpkg+"-r vipd")
		}
		g.owned(dpkg+"-i /packages/old/*_amd64.deb", dpkg+"-i /packages/new/*_amd64.deb", dpkg+"-r vipd")
		g.run("test -e /etc/vipd/vipd.toml")
		g.run(dpkg + "-P vipd")
	})
	t.Run("rpm", func(t *testing.T) {
		lab.Need(t, "rpm")
		g := g.inSubtest(t)
		if out, err := g.try("test -e /usr/bin/vipd || test -e /etc/vipd || test -e /var/lib/vipd || ls -d /etc/systemd/system/*/vipd.service"); err == nil {
			t.Fatalf("files after dpkg -P =\n%s\nwant none", out)
		}
		g.packaged("nftables", "rpm -i --nodeps /packages/old/*.x86_64.rpm; systemctl start vipd", "rpm -U --nodeps /packages/new/*.x86_64.rpm", "rpm -e vipd")
		g.run("test -e /etc/vipd/vipd.toml.rpmsave")
	})
}

// packaged runs a package's lifecycle with its manager's commands. Upgrades and downgrades must not
// lose a connection, and a removal must leave nothing in the kernel.
func (g *gateway) packaged(mode, install, upgrade, remove string) {
	t := g.t
	t.Helper()
	out := g.run(install)
	if got := g.property("ActiveState"); got != "active" {
		t.Fatalf("after the installation: unit = %s, want active\n%s\n%s", got, out, g.journal(""))
	}
	g.run("getent group vipd")
	g.version("0.0.1")
	g.configure(config(fmt.Sprintf("mode = %q\nstrict_mode = true", mode), service("web", 10, "/usr/local/bin/check")))
	g.run("systemctl restart vipd")
	g.serves("10.96.0.10")
	open, err := g.dial("10.96.0.10")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	stop := g.clients("10.96.0.10")
	g.run(upgrade)
	g.version("0.0.2")
	echoes(t, open)
	if strings.HasPrefix(install, "dpkg") {
		g.run(install)
		g.version("0.0.1")
		echoes(t, open)
	}
	if n := stop(); n < 20 {
		t.Errorf("served clients = %d, want at least 20", n)
	}
	if text := read(t, g.path("/etc/vipd/vipd.toml")); !strings.Contains(text, "[services.web]") {
		t.Errorf("configuration after the upgrade =\n%s\nwant the service web in it", text)
	}
	g.run(remove)
	if out := g.run("iptables-save; nft list ruleset; ip address"); strings.Contains(strings.ToLower(out), "vipd") || strings.Contains(out, "10.96.0.10") {
		t.Errorf("rules and addresses after %s =\n%s\nwant none of vipd", remove, out)
	}
	if out, err := g.try("pidof vipd"); err == nil {
		t.Errorf("processes of vipd after %s = %s, want none", remove, out)
	}
}

// owned upgrades the package on a host that owns VIPs. The host must own them again.
func (g *gateway) owned(install, upgrade, remove string) {
	t := g.t
	t.Helper()
	lab.Need(t, "etcd")
	const vip, owner = "10.1.0.100", "systemctl show vipd-owner --value -p MainPID"
	g.run(install)
	if pid := strings.TrimSpace(g.run(owner)); pid != "0" {
		t.Errorf("after the installation: vipd-owner's process ID = %s, want 0", pid)
	}
	g.run("systemd-run --quiet --unit=members --service-type=notify -p StateDirectory=etcd -- etcd --data-dir /var/lib/etcd/data")
	g.configure("mode = \"nftables\"\n[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\n[ownership]\nenabled = true\n" +
		"[vips.\"" + vip + "\"]\nhold = \"one\"\n" + strings.Replace(service("owned", 10, ""), "10.96.0.10", vip, 1))
	g.run("systemctl restart vipd; systemctl start vipd-owner")
	g.serves(vip)
	before := g.run(owner)
	g.run(upgrade)
	if after := g.run(owner); after == before || strings.TrimSpace(after) == "0" {
		t.Errorf("after the upgrade: vipd-owner's process ID = %s, want one other than %s", after, before)
	}
	g.serves(vip)
	g.run(remove + "; systemctl stop members")
}

// version checks the version of vipctl, and of the running daemon.
func (g *gateway) version(want string) {
	g.t.Helper()
	if out := g.run("vipctl version"); !strings.Contains(out, want) {
		g.t.Errorf("vipctl version = %s, want %s", out, want)
	}
	log := g.journal("")
	if last := log[max(0, strings.LastIndex(log, "vipd starts")):]; !strings.Contains(last, "version=v"+want) {
		g.t.Errorf("want version %s in the last start of vipd; log =\n%s", want, log)
	}
}
