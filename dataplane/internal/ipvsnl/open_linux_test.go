package ipvsnl

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLoading runs a fake modprobe that prints recorded messages. The error must contain the reason
// and a helpful command, in a single line because it is shown next to the mode.
func TestLoading(t *testing.T) {
	here := release()
	for _, c := range []struct {
		name, said string
		code       string
		want       string
	}{
		{"loads", "", "0", ""},
		{"kmod without the module", "modprobe: FATAL: Module ip_vs not found in directory /lib/modules/" + here, "1", "kernel " + here + " has no module ip_vs: install linux-modules-extra-" + here + " or your distribution's equivalent, then run `modprobe ip_vs`"},
		{"kmod without any module", "modprobe: ERROR: ../libkmod/libkmod.c:595 kmod_search_moddep() could not open moddep file '/lib/modules/x/modules.dep.bin'", "1", "kernel " + here + " has no module ip_vs: install linux-modules-extra-" + here + " or your distribution's equivalent, then run `modprobe ip_vs`"},
		{"busybox without any module", "modprobe: can't change directory to '/lib/modules': No such file or directory", "1", "kernel " + here + " has no module ip_vs: install linux-modules-extra-" + here + " or your distribution's equivalent, then run `modprobe ip_vs`"},
		{"no privilege", "modprobe: ERROR: could not insert 'ip_vs': Operation not permitted", "1", "`modprobe ip_vs` as root on the host"},
		{"the kernel refuses it", "modprobe: ERROR: could not insert 'ip_vs': Key was rejected by service", "1", "`modprobe ip_vs` fails: modprobe: ERROR: could not insert 'ip_vs': Key was rejected by service (dmesg might show the reason)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			script := "#!/bin/sh\necho \"$@\" >" + dir + "/args\n[ -z \"" + c.said + "\" ] || echo \"" + c.said + "\" >&2\nexit " + c.code + "\n"
			if err := os.WriteFile(filepath.Join(dir, "modprobe"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			var log bytes.Buffer
			err := load(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
			args, readErr := os.ReadFile(filepath.Join(dir, "args"))
			if readErr != nil || string(args) != "ip_vs conn_tab_bits=20\n" {
				t.Errorf("arguments of modprobe = %q, %v; want ip_vs with the option", args, readErr)
			}
			if c.want == "" {
				if err != nil || !strings.Contains(log.String(), `module=ip_vs option="conn_tab_bits=20"`) {
					t.Errorf("error = %v, log = %q; want nil, and a line about the loaded module", err, &log)
				}
				return
			}
			if !errors.Is(err, ErrUnsupported) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) || log.Len() > 0 {
				t.Errorf("error = %v, log = %q; want %s", err, &log, c.want)
			}
		})
	}
}

// TestOpenWithoutIPVS calls Open on a kernel without IPVS. The error must contain the reason.
func TestOpenWithoutIPVS(t *testing.T) {
	k, err := Open(t.Context(), slog.New(slog.DiscardHandler))
	if err == nil {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		t.Skip("needs a kernel without IPVS")
	}
	if !errors.Is(err, ErrUnsupported) || !strings.HasPrefix(err.Error(), ErrUnsupported.Error()) || !strings.Contains(err.Error(), "modprobe") {
		t.Errorf("Open = %v, want ErrUnsupported and advice to use modprobe", err)
	}
}
