package xtables

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"vipd/dataplane/internal/inet"
)

// script simulates a host's programs. It maps each program with its arguments to its output.
// Programs that are missing from the map are not installed.
type script map[string]string

func (s script) lookPath(program string) (string, error) {
	for k := range s {
		if strings.HasPrefix(k+" ", program+" ") {
			return "/usr/sbin/" + program, nil
		}
	}
	return "", &exec.Error{Name: program, Err: exec.ErrNotFound}
}

func (s script) run(_ context.Context, input, program string, args ...string) (string, string, error) {
	if input != "" {
		if refusal, ok := s[program]; ok && refusal != "" {
			return "", refusal, errors.New("exit status 4")
		}
		return "", "", nil
	}
	out, ok := s[program+" "+strings.Join(args, " ")]
	if !ok {
		out = s[program]
	}
	return out, "", nil
}

func TestFindVariant(t *testing.T) {
	const foreign = "*filter\n-A INPUT -j ACCEPT\nCOMMIT\n"
	const ours = "*nat\n-A PREROUTING -j VIPD-SERVICES\nCOMMIT\n"
	nftPlain := script{
		"iptables --version": "iptables v1.8.9 (nf_tables)\n", "iptables-save": "",
		"iptables-restore": "", "iptables-legacy": "", "iptables-legacy-restore": "", "iptables-nft": "", "iptables-nft-restore": "",
		"iptables-legacy-save -t filter": "", "iptables-nft-save": "",
	}
	with := func(base script, program, output string) script {
		s := script{}
		for k, v := range base {
			s[k] = v
		}
		s[program] = output
		return s
	}
	legacyPlain := with(nftPlain, "iptables --version", "iptables v1.8.9 (legacy)\n")
	for _, c := range []struct {
		name    string
		host    script
		loaded  []string
		ask     Variant
		program string
		variant Variant
		why     string
	}{
		{"an empty host has its default", nftPlain, nil, Auto, "iptables", NFT, "the default of iptables"},
		{"the default has the host's rules", with(with(nftPlain, "iptables-save", foreign), "iptables-legacy-save -t filter", foreign), []string{"filter"}, Auto, "iptables", NFT, "the host's other rules use it"},
		{"the host's rules are in legacy", with(nftPlain, "iptables-legacy-save -t filter", foreign), []string{"filter"}, Auto, "iptables-legacy", Legacy, "the host's other rules use it"},
		{"legacy tables that are not loaded are not asked", with(nftPlain, "iptables-legacy-save -t filter", foreign), nil, Auto, "iptables", NFT, "the default of iptables"},
		{"our own rules do not count", with(nftPlain, "iptables-legacy-save -t filter", ours), []string{"filter"}, Auto, "iptables", NFT, "the default of iptables"},
		{"the host's rules are in nft", with(legacyPlain, "iptables-nft-save", foreign), nil, Auto, "iptables-nft", NFT, "the host's other rules use it"},
		{"an old version says nothing", script{"iptables --version": "iptables v1.6.1\n", "iptables-restore": ""}, nil, Auto, "iptables", Legacy, "the default of iptables"},
		{"asked for", nftPlain, nil, Legacy, "iptables-legacy", Legacy, "configured"},
		{"asked for, under the plain name only", script{"iptables --version": "iptables v1.8.9 (legacy)\n", "iptables-restore": ""}, nil, Legacy, "iptables", Legacy, "configured"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := finder{
				family: inet.IPv4, run: c.host.run, look: c.host.lookPath, privileged: func() bool { return true },
				loaded: func(inet.Family) []string { return c.loaded },
			}
			got, err := f.find(t.Context(), c.ask)
			if err != nil || got.program != c.program || got.variant != c.variant || got.Why() != c.why {
				t.Fatalf("tool = %+v, %v; want %s (%s), because %s", got, err, c.program, c.variant, c.why)
			}
		})
	}
}

// TestBusyIsNotUnsupported classifies error messages of iptables. IsBusy must return true only for
// temporary failures.
func TestBusyIsNotUnsupported(t *testing.T) {
	f := finder{privileged: func() bool { return true }}
	for text, busy := range map[string]bool{
		"Another app is currently holding the xtables lock. Stopped waiting after 5s.":                  true,
		"line 3: CHAIN_DEL failed (Device or resource busy): chain VIPD-TRIAL":                          true,
		"iptables: Resource temporarily unavailable.":                                                   true,
		"can't initialize iptables table `filter': Table does not exist (do you need to insmod?)":       false,
		"Fatal: can't open lock file /run/xtables.lock: Permission denied":                              false,
		"Could not fetch rule set generation id: Invalid argument":                                      false,
		"Warning: Extension conntrack revision 0 not supported, missing kernel module?; COMMIT refused": false,
	} {
		err := f.unsupported("iptables", failure("iptables-restore", "", text, errors.New("exit status 4")))
		_, ok := errors.AsType[*UnsupportedError](err)
		if ok == busy || IsBusy(err) != busy {
			t.Errorf("%q: error = %v, busy = %t; want busy = %t", text, err, IsBusy(err), busy)
		}
	}
}

func TestFindSaysWhatIsNeeded(t *testing.T) {
	works := script{"iptables --version": "iptables v1.8.9 (nf_tables)\n", "iptables-restore": ""}
	refuses := script{"iptables --version": "iptables v1.8.9 (nf_tables)\n", "iptables-restore": "Permission denied (you must be root)"}
	for _, c := range []struct {
		name       string
		host       script
		ask        Variant
		privileged bool
		want       string // part of the error; "" means success
	}{
		{"works", works, Auto, true, ""},
		{"not installed", script{}, Auto, true, "apt-get install iptables"},
		{"not this variant", works, Legacy, true, "apt-get install iptables"},
		{"no privilege", refuses, Auto, false, "CAP_NET_ADMIN"},
		{"no kernel support", refuses, Auto, true, "modprobe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := finder{
				family: inet.IPv4, run: c.host.run, look: c.host.lookPath, loaded: func(inet.Family) []string { return nil },
				privileged: func() bool { return c.privileged },
			}
			tool, err := f.find(t.Context(), c.ask)
			if err == nil {
				err = tool.Restore(t.Context(), Trial("filter"))
			}
			if err != nil {
				err = f.unsupported("iptables", err)
			}
			var unsupported *UnsupportedError
			switch {
			case c.want == "" && err != nil:
				t.Fatalf("error = %v, want nil", err)
			case c.want != "" && (!errors.As(err, &unsupported) || !strings.Contains(unsupported.Need, c.want)):
				t.Fatalf("error = %v, want an UnsupportedError that contains %q", err, c.want)
			}
		})
	}
}
