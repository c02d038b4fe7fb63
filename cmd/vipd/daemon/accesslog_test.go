package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vipd/cmd/internal/events"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestAccessLog closes connections, and renames the log file. Each connection must have a line with
// its details, and vipd must create the file again.
func TestAccessLog(t *testing.T) {
	server(t, "127.58.1.1:9001", "one")
	n := &node{t: t, dir: t.TempDir()}
	file := filepath.Join(n.dir, "access.json")
	text := strings.Replace(header, "[userspace]\n", "[userspace]\naccess_log = \"access.json\"\n", 1) + pair + `
[services.gone]
vips = ["127.58.0.2"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.58.1.2", port = 9001 }]
`
	program.Save(t, n.file(), text)
	n.start()
	t.Cleanup(func() { n.stop() })
	type entry struct {
		Time, Service, Client, Frontend, Endpoint, End string
		Out                                            uint64 `json:"bytes_out"`
		Seconds                                        float64
		Retries                                        int
	}
	lines := func() (all []entry) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(text)) {
			var e entry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all = append(all, e)
		}
		return all
	}
	ask("127.58.0.2:8080")
	ask("127.58.0.1:8080")
	ask("127.58.0.1:8080") // one of the two connections was first tried at the dead endpoint
	wait.For(t, 0, "three lines", func() bool { return len(lines()) == 3 })
	retried := slices.ContainsFunc(lines(), func(e entry) bool { return e.Service == "web" && e.Retries == 1 })
	for _, e := range lines() {
		want := entry{Service: "web", Frontend: "127.58.0.1:8080/tcp", Endpoint: "127.58.1.1:9001", End: "closed", Out: 3}
		if e.Service == "gone" {
			want = entry{Service: "gone", Frontend: "127.58.0.2:8080/tcp", End: "refused"}
		}
		if e.Time == "" || e.Seconds <= 0 || !strings.HasPrefix(e.Client, "127.") || !retried {
			t.Errorf("access log line = %+v, want a time, a duration, a client in 127.0.0.0/8 and a retry", e)
		}
		if e.Time, e.Client, e.Seconds, e.Retries = "", "", 0, 0; e != want {
			t.Errorf("access log line =\n%+v, want\n%+v", e, want)
		}
	}
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	wait.For(t, 0, "a new file", func() bool {
		ask("127.58.0.1:8080")
		return len(lines()) > 0
	})
	if got := n.metric("vipd_access_log_lost_total"); got != "0" {
		t.Errorf("lost lines = %s, want 0", got)
	}
	if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	const problem = "access_log: connections are not logged because access.json can't be written: "
	wait.For(t, 0, "the problem", func() bool {
		ask("127.58.0.1:8080")
		return strings.HasPrefix(n.problems(), problem) && strings.Contains(n.eventsOf(events.Problem), "can't be written")
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wait.For(t, 0, "the end of the problem", func() bool {
		ask("127.58.0.1:8080")
		return n.problems() == ""
	})
}

// TestAccessLogOfServices sets and changes the setting access_log of some services. Their lines
// must then be written to the new destination, and all other lines to the destination in
// [userspace].
func TestAccessLogOfServices(t *testing.T) {
	server(t, "127.58.2.1:9001", "one")
	log := &journaled{}
	n := &node{t: t, dir: t.TempDir(), log: slog.NewTextHandler(log, nil)}
	all := ""
	for i, name := range []string{"usual", "quiet", "alone", "beside", "told"} {
		all += fmt.Sprintf("[services.%s]\nvips = [\"127.58.2.%d\"]\nports = [{ port = 8080 }]\nendpoints = [{ address = \"127.58.2.1\", port = 9001 }]\n",
			name, i+10)
	}
	own := strings.NewReplacer("[services.quiet]", "[services.quiet]\naccess_log = \"\"", "[services.alone]", "[services.alone]\naccess_log = \"own.log\"",
		"[services.beside]", "[services.beside]\naccess_log = \"./own.log\"", "[services.told]", "[services.told]\naccess_log = \"journal\"")
	n.write(all)
	n.start()
	t.Cleanup(func() { n.stop() })
	askAll := func() {
		for i := range 5 {
			ask(fmt.Sprintf("127.58.2.%d:8080", i+10))
		}
	}
	askAll()
	logged := func(service string) (where string) {
		own, _ := os.ReadFile(filepath.Join(n.dir, "own.log"))
		for name, text := range map[string]string{"own": string(own), "journal": strings.Join(log.lines("msg=connection"), "")} {
			for line := range strings.Lines(text) {
				if strings.Contains(line, "service="+service+" client=") {
					where += name + " "
				}
			}
		}
		return where
	}
	n.write(own.Replace(all))
	wait.For(t, 0, "the services' own logs", func() bool {
		askAll()
		return logged("alone") != "" && logged("beside") != "" && logged("told") != ""
	})
	n.write(strings.Replace(all, "[services.quiet]", "[services.quiet]\naccess_log = \"journal\"", 1))
	wait.For(t, 0, "a log of a service that had none", func() bool { askAll(); return logged("quiet") != "" })
	if usual, alone, told := logged("usual"), logged("alone"), logged("told"); usual != "" || strings.Contains(alone, "journal") || strings.Contains(told, "own") {
		t.Errorf("lines in \"usual\" = %q, \"alone\" = %q, \"told\" = %q; want each service's lines only in its own destination", usual, alone, told)
	}
}
