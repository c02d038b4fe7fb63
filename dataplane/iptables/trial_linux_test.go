package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	"vipd/test/wait"
)

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// holdLock holds the legacy tables' lock, as another program would, until release is called.
func holdLock(t *testing.T) (release func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	f, err := os.Create(path)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

// TestNewWaitsForLock holds the lock longer than the iptables programs wait for it. New must keep
// waiting, because without the family, vipd could not serve it until a restart.
func TestNewWaitsForLock(t *testing.T) {
	lab.Require(t)
	lab.New(t).Host()
	release := holdLock(t)
	time.AfterFunc(5500*time.Millisecond, release) // iptables waits only for 5 s
	d, err := New(t.Context(), Options{Variant: xtables.Legacy})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.families) != 2 {
		t.Errorf("missing families = %v, want none", d.missing)
	}
	if err := d.Close(context.Background(), false); err != nil {
		t.Error(err)
	}
}

// TestNewEndsWithContext holds the lock of one family. When its context is done, New must return an
// error instead of a dataplane without this family.
func TestNewEndsWithContext(t *testing.T) {
	lab.Require(t)
	lab.New(t).Host()
	dir := fakeProgram(t, "ip6tables-nft-restore", "VIPD-TRIAL", held, false) // the program for IPv4 still works
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		wait.For(t, wait.Patience, "a try", func() bool { _, err := os.Stat(filepath.Join(dir, "tried")); return err == nil })
		cancel()
	})
	if d, err := New(ctx, Options{Variant: xtables.NFT}); !xtables.IsBusy(err) {
		t.Errorf("New = %v, want an error about the lock", err)
		if err == nil {
			_ = d.Close(context.Background(), false)
		}
	}
}

// These are error messages of iptables: one about a lock that another program holds, and one about
// a feature that the kernel lacks.
const (
	held    = "Another app is currently holding the xtables lock. Stopped waiting after 5s."
	lacking = "iptables-restore: line 3 failed: No such file or directory."
)

// fakeProgram installs a fake program that hides the real one. If its input contains word, it
// prints says and fails, or only the first time if once is true. From the second such call on, the
// directory dir contains a file named "tried".
func fakeProgram(t *testing.T, program, word, says string, once bool) (dir string) {
	t.Helper()
	real, err := exec.LookPath(program)
	if err != nil {
		t.Skip("needs ", program)
	}
	dir = t.TempDir()
	note := "! [ -e " + dir + "/once ] || touch " + dir + "/tried; touch " + dir + "/once;" // the context may interrupt a call
	if once {
		note = "touch " + dir + "/said;"
	}
	script := fmt.Sprintf(`#!/bin/sh
input=$(cat)
case "$input" in *%q*) if ! [ -e %s/said ]; then %s echo %q >&2; exit 4; fi;; esac
printf '%%s\n' "$input" | exec %s "$@"
`, word, dir, note, says, real)
	if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

// TestBusyIsNotRefused makes the trial of a feature fail because another program holds the lock.
// The feature must remain in the capabilities.
func TestBusyIsNotRefused(t *testing.T) {
	lab.Require(t)
	for _, missing := range []bool{false, true} {
		for _, word := range []string{"sctp", "bpf"} {
			t.Run(fmt.Sprintf("%s, missing: %t", word, missing), func(t *testing.T) {
				lab.New(t).Host()
				want := Capabilities()
				says := held
				switch {
				case missing && word == "sctp":
					says, want.Protocols = lacking, []balancer.Protocol{balancer.TCP, balancer.UDP}
				case missing:
					says = lacking
					want.Nearest[balancer.SourceHash], want.Nearest[balancer.Maglev] = balancer.Random, balancer.Random
				}
				fakeProgram(t, "iptables-nft-restore", "-m "+word, says, !missing)
				d, err := New(t.Context(), Options{Variant: xtables.NFT})
				if err != nil {
					t.Fatal(err)
				}
				got := d.Capabilities()
				if !slices.Equal(got.Protocols, want.Protocols) || fmt.Sprint(got.Nearest) != fmt.Sprint(want.Nearest) {
					t.Errorf("Protocols = %v, Nearest = %v; want %v, %v", got.Protocols, got.Nearest, want.Protocols, want.Nearest)
				}
				if err := d.Close(context.Background(), false); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestNativeChains adds a gateway's nft rules to the table that contains vipd's chains. Both must
// work.
func TestNativeChains(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft: ", err)
	}
	r := newRig(t, xtables.NFT)
	run(t, "nft", "add table ip nat")
	run(t, "nft", "add chain ip nat postrouting { type nat hook postrouting priority 100; }")
	run(t, "nft", "add rule ip nat postrouting oifname eth0 masquerade")
	r.apply(r.web(balancer.TCP, 2))
	if err := r.d.Close(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	r.d = r.open(xtables.NFT)
	if seen, err := r.d.Observe(t.Context()); err != nil || len(seen.Digests) != 1 || len(seen.Damage) > 0 {
		t.Errorf("after a restart: Observe = %+v, %v; want one frontend", seen, err)
	}
	if _, who := r.ask(balancer.TCP); who != "s2" {
		t.Errorf("server = %s, want s2", who)
	}

	// If the table contains rules that iptables can't print, vipd's rules in it can't be read
	// either, so vipd must use another mode. It must still be able to remove its existing rules.
	run(t, "nft", "add chain ip nat mine")
	run(t, "nft", "add rule ip nat mine ct state established accept")
	for _, backend := range []xtables.Variant{xtables.NFT, xtables.Auto} {
		if _, err := New(t.Context(), Options{Variant: backend}); !errors.Is(err, xtables.ErrIncompatible) {
			t.Errorf("%s: New = %v, want ErrIncompatible", backend, err)
		}
	}
	if legacy, err := New(t.Context(), Options{Variant: xtables.Legacy}); err != nil {
		t.Error("New for the legacy variant after the nft variant: error = ", err)
	} else {
		if _, err := legacy.Observe(t.Context()); err != nil {
			t.Error("switch from the nft variant: error = ", err)
		}
		if err := legacy.Close(context.Background(), false); err != nil {
			t.Error(err)
		}
	}
	if left := run(t, "nft", "list table ip nat"); strings.Contains(left, "VIPD-") {
		t.Errorf("rules after the switch = %s, want none of vipd's rules", left)
	}
}

// TestDetail selects variants on hosts that have different iptables programs. The detail must name
// each family's variant and the reason for it.
func TestDetail(t *testing.T) {
	lab.Require(t)
	lab.New(t).Host()
	detail := func(backend xtables.Variant) string {
		d, err := New(t.Context(), Options{Variant: backend})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := d.Close(context.Background(), false); err != nil {
				t.Error(err)
			}
		}()
		return d.Traits().Detail
	}
	if got := detail(xtables.Legacy); got != "legacy (configured)" {
		t.Errorf("detail = %q, want legacy (configured)", got)
	}
	run(t, "iptables-legacy", "-A", "INPUT", "-s", "192.0.2.1", "-j", "DROP")
	run(t, "ip6tables-nft", "-A", "INPUT", "-s", "2001:db8::1", "-j", "DROP")
	const why = "(the host's other rules use it)"
	if got := detail(xtables.Auto); got != "ipv4 uses legacy "+why+"; ipv6 uses nft "+why {
		t.Errorf("detail = %q, want both variants", got)
	}
	fakeProgram(t, "ip6tables-legacy-restore", "VIPD-TRIAL", lacking, false)
	if got := detail(xtables.Legacy); !strings.HasPrefix(got, "ipv4 uses legacy (configured); no ipv6: ip6tables-legacy does not work here: ") {
		t.Errorf("detail = %q, want the reason why IPv6 does not work", got)
	}
}
