package host

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestLedgerText encodes and decodes ledgers of several sizes. The decoded ledger must equal the
// original.
func TestLedgerText(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		l, err := loadLedger(t.TempDir(), "boot", "net")
		if err != nil {
			t.Fatal(err)
		}
		l.setLink("vipd0")
		for i, a := range []string{"10.96.0.10", "fd00::1", "10.96.0.2"}[:n] {
			l.setAddress(netip.MustParseAddr(a), []string{"lo", "a\"b", "vipd0"}[i])
			l.setAddress(netip.MustParseAddr(a), []string{"vipd0", "a\"b", "lo"}[i])
		}
		save := func() {
			t.Helper()
			if err := l.save(); err != nil {
				t.Fatal(err)
			}
		}
		save()
		if n > 0 { // after the first write, two addresses are added and one is removed
			l.setAddress(netip.MustParseAddr("10.96.0.30"), "a\"b")
			save()
			l.dropAddress(netip.MustParseAddr("10.96.0.10"))
			l.setAddress(netip.MustParseAddr("10.96.0.40"), "lo")
			save()
			n++
		}
		got, err := loadLedger(filepath.Dir(l.path), "boot", "net")
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got.Addresses, l.Addresses) || len(got.Addresses) != n || !maps.Equal(got.Links, l.Links) || len(got.Leaving) != len(l.Leaving) {
			t.Errorf("decoded ledger with %d addresses = %+v, want %+v", n, got, l)
		}
	}
}

// TestLedger saves a ledger, and loads it in the same and in other boots and network namespaces.
// The ledger must have its content if both are the same, and must be empty otherwise.
func TestLedger(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "vipd")
	l, err := loadLedger(dir, "boot", "net")
	if err != nil || !l.empty() {
		t.Fatalf("ledger without a file = %+v, %v; want an empty ledger", l, err)
	}
	vip := netip.MustParseAddr("10.96.0.10")
	l.setAddress(vip, "lo")
	l.setLink("vipd0")
	l.setSysctl(forward4, sysctlRecord{Old: "0", Set: "1"})
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, boot, namespace string
		want                  bool
	}{
		{"the same run", "boot", "net", true},
		{"after a reboot", "boot2", "net", false},
		{"another namespace", "boot", "net2", false},
	} {
		got, err := loadLedger(dir, c.boot, c.namespace)
		if err != nil || (got.Addresses[vip] == "lo" && got.Links["vipd0"] && got.Sysctls[forward4].Old == "0") != c.want || got.empty() == c.want {
			t.Errorf("%s: ledger = %+v, %v; want the saved content = %t", c.name, got, err, c.want)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("files = %v, %v; want only the ledger", files, err)
	}
	l.dropAddress(vip)
	l.dropLink("vipd0")
	l.dropSysctl(forward4)
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(l.path); !os.IsNotExist(err) {
		t.Errorf("Stat for an empty ledger's file = %v, want fs.ErrNotExist", err)
	}
	if err := os.WriteFile(l.path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := loadLedger(dir, "boot", "net"); err == nil || !got.empty() {
		t.Errorf("ledger from a broken file = %+v, %v; want an empty ledger and an error", got, err)
	}
}

// memorySysctls implements sysctls in memory. A sysctl that is missing from values can't be read.
// If locked is true, no sysctl can be written.
type memorySysctls struct {
	values map[string]string
	locked bool
}

func (m memorySysctls) Read(name string) (string, error) {
	v, ok := m.values[name]
	if !ok {
		return "", os.ErrNotExist
	}
	return v, nil
}

func (m memorySysctls) Write(name, value string) error {
	if m.locked {
		return os.ErrPermission
	}
	m.values[name] = value
	return nil
}

// TestSysctls raises a sysctl and restores it. If another program has changed the value, that value
// must stay.
func TestSysctls(t *testing.T) {
	least := []minimum{{name: "net.x", value: 1, loss: "x is too small"}}
	for _, c := range []struct {
		name, before string
		manage       bool
		locked       bool
		during       string
		problems     int
		// meanwhile is the value that another program sets after raise and before restore. If it is
		// "", no program changes the value.
		meanwhile, after string
	}{
		{"too small", "0", true, false, "1", 0, "", "0"},
		{"enough", "1", true, false, "1", 0, "", "1"},
		{"above the minimum", "2", true, false, "2", 0, "", "2"},
		{"not ours to set", "0", false, false, "0", 1, "", "0"},
		{"read-only", "0", true, true, "0", 1, "", "0"},
		{"read-only, then set by another program", "0", true, true, "0", 1, "1", "1"},
		{"changed since", "0", true, false, "1", 0, "2", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := loadLedger(t.TempDir(), "boot", "net")
			if err != nil {
				t.Fatal(err)
			}
			s := memorySysctls{map[string]string{"net.x": c.before}, c.locked}
			leave := ""
			if !c.manage {
				leave = "nobody may"
			}
			var again []string
			problems, err := raise(s, l, leave, least, func(what string) { again = append(again, what) })
			if err != nil || len(problems) != c.problems || s.values["net.x"] != c.during {
				t.Fatalf("raised value = %q, problems = %v, error = %v; want %q and %d problems", s.values["net.x"], problems, err, c.during, c.problems)
			}
			if len(again) > 0 {
				t.Errorf("reported repairs = %v, want none because vipd never set the sysctl", again)
			}
			if !c.locked && len(l.Sysctls) > 0 {
				s.values["net.x"] = c.before
				_, err := raise(s, l, leave, least, func(what string) { again = append(again, what) })
				if want := "[sysctl net.x was " + c.before + "]"; err != nil || fmt.Sprint(again) != want || s.values["net.x"] != c.during {
					t.Errorf("reported repairs = %v, want %s; value = %s, %v", again, want, s.values["net.x"], err)
				}
			}
			if c.meanwhile != "" {
				s.values["net.x"] = c.meanwhile
			}
			if err := restoreSysctls(s, l, slices.Collect(maps.Keys(l.Sysctls))); err != nil {
				t.Fatal(err)
			}
			if s.values["net.x"] != c.after || !l.empty() {
				t.Fatalf("restored value = %q, want %q; ledger = %+v", s.values["net.x"], c.after, l)
			}
		})
	}
}

// TestSysctlPaths resolves the names of sysctls to paths. Names that lead outside /proc/sys must be
// refused.
func TestSysctlPaths(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward": "/proc/sys/net/ipv4/ip_forward", "net.ipv6.conf.eth0/5.disable_ipv6": "/proc/sys/net/ipv6/conf/eth0.5/disable_ipv6",
		"net.ipv4.//../../../tmp/victim": "", "net.//.kernel.core_pattern": "", "..x": "", "": "", ".etc": "",
	} {
		got, err := procSysctls{}.path(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("path(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
}
