package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"vipd/test/lab"
)

// TestMistakes compares the message and the exit code of failed starts.
func TestMistakes(t *testing.T) {
	lab.New(t)
	t.Chdir(t.TempDir())
	const base = "mode = \"userspace\"\nstate_dir = \"state\"\n"
	for name, text := range map[string]string{
		"file": "", "bad.toml": "mode = \"userspac\"\n", "none.toml": "services = 1\n", "run.toml": base + "run_dir = \"file/run\"\n",
		"socket.toml": base + "run_dir = \"run\"\n[api]\nhttp = \"\"\nsocket = \"file\"\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"--nonsense":              "2 vipd: there is no flag --nonsense; see vipd --help",
		"start":                   `2 vipd: unexpected argument "start": vipd accepts only flags; see vipd --help`,
		"--mode nft":              `2 vipd: --mode "nft" is unknown; the modes are auto, ipvs, nftables, iptables, userspace`,
		"--log-level loud":        `2 vipd: --log-level "loud" is unknown; use debug, info, warn or error`,
		"--log-format xml":        `2 vipd: --log-format "xml" is unknown; use text or json`,
		"--config nowhere.toml":   "78 vipd: there is no configuration at nowhere.toml: create the file, or set --config to another file: stat nowhere.toml: no such file or directory",
		"--config .":              "78 vipd: reading the configuration: read .: a folder: name a file in it",
		"--config bad.toml":       `78 vipd: bad.toml:1: mode: "userspac" is not one of auto, ipvs, nftables, iptables, userspace; did you mean "userspace"?`,
		"--config none.toml":      "78 vipd: none.toml:1: services: needs a table for each service, such as [services.web]", // otherwise it would remove the services of an earlier vipd
		"--config run.toml":       "1 vipd: creating vipd's folder (set run_dir and state_dir to folders that this user can write to): mkdir file: not a directory",
		"--config socket.toml":    "1 vipd: api.socket file is in the way: it is not a socket; remove it or choose another path",
		"owner now":               "2 vipd owner: only flags are accepted; see vipd owner --help",
		"owner --config run.toml": "78 vipd owner: run.toml: this host owns no VIPs: set ownership.enabled = true, or do not start vipd owner",
	} {
		var out, errs bytes.Buffer
		code := 0
		if args, ok := strings.CutPrefix(line, ownerVerb+" "); ok {
			code = runOwner(strings.Fields(args), &out, &errs)
		} else {
			code = run(t.Context(), strings.Fields(line), &out, &errs)
		}
		got := strings.TrimSpace(errs.String())
		if got = fmt.Sprint(code, " ", got[strings.LastIndex(got, "\n")+1:]); got != want { // the message follows the log lines
			t.Errorf("vipd %s:\ngot  %s\nwant %s", line, got, want)
		}
	}
}
