package packetflow

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store/tomlfile"
)

// section is a part of flows.md: services, and the expected answers to clients.
type section struct {
	name     string
	services snap.Map[balancer.Name, *balancer.Service]
	rows     []row
}

// row is a line of a table.
type row struct {
	line       int
	client, to string
	verdict    verdict
	// answers maps the servers that can answer to their shares.
	answers map[string]int
	// stays reports whether the same server must always answer.
	stays bool
	// nodeAt names the server that sees an address of the node; "*" means all.
	nodeAt string
}

type verdict string

const (
	served  verdict = "served"
	refused verdict = "refused"
	dropped verdict = "dropped"
	lost    verdict = "lost"
)

func (r row) String() string { return fmt.Sprintf("flows.md:%d, %s to %s", r.line, r.client, r.to) }

// seesNode reports whether a server sees an address of the node.
func (r row) seesNode(server string) bool { return r.nodeAt == "*" || r.nodeAt == server }

// names returns the servers that can answer.
func (r row) names() []string {
	var all []string
	for name := range r.answers {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func readSections(t *testing.T) []section {
	t.Helper()
	text, err := os.ReadFile("flows.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []section
	var base string
	for _, part := range strings.Split("\n"+string(text), "\n## ") {
		name, _, _ := strings.Cut(part, "\n")
		block := between(part, "```toml\n", "```")
		if base == "" {
			base = block
			continue
		}
		line := strings.Count(string(text)[:strings.Index(string(text), "\n## "+name+"\n")+1], "\n") + 1
		s := section{name: name, services: loadServices(t, name, "[services.web]\n"+strings.Join(slices.Sorted(maps.Values(merged(base, block))), ""))}
		for i, text := range strings.Split(part, "\n") {
			if strings.HasPrefix(text, "|") && !strings.HasPrefix(text, "| client |") && !strings.HasPrefix(text, "|---") {
				r, err := readRow(text)
				if err != nil {
					t.Fatalf("flows.md:%d: %v", line+i, err)
				}
				r.line = line + i
				s.rows = append(s.rows, r)
			}
		}
		if len(s.rows) == 0 {
			t.Fatalf("flows.md: section %q has no rows", name)
		}
		all = append(all, s)
	}
	return all
}

// merged returns the fields in base and block by name. Fields in block override fields in base.
func merged(base, block string) map[string]string {
	fields := map[string]string{}
	for _, text := range []string{base, block} {
		name := ""
		for line := range strings.Lines(text) {
			switch first, _, found := strings.Cut(line, " = "); {
			case strings.HasPrefix(line, "["):
				continue
			case found && strings.Trim(first, "abcdefghijklmnopqrstuvwxyz_") == "":
				name = first
				fields[name] = line
			default:
				fields[name] += line
			}
		}
	}
	return fields
}

func between(text, start, end string) string {
	_, rest, _ := strings.Cut(text, start)
	block, _, _ := strings.Cut(rest, end)
	return block
}

func loadServices(t *testing.T, name, text string) snap.Map[balancer.Name, *balancer.Service] {
	t.Helper()
	file := filepath.Join(t.TempDir(), "services.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded := tomlfile.Load(file)
	for _, p := range loaded.Snapshot.Problems {
		t.Errorf("flows.md: section %q: %s", name, p)
	}
	return loaded.Snapshot.Services
}

func readRow(text string) (r row, err error) {
	const bar = "\x00"
	cells := strings.Split(strings.Trim(strings.ReplaceAll(text, `\|`, bar), "|"), "|")
	if len(cells) != 4 {
		return r, fmt.Errorf("%d cells, want 4", len(cells))
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], bar, "|"))
	}
	r = row{client: cells[0], to: cells[1], verdict: served, answers: map[string]int{}}
	if _, err := r.destination(); err != nil {
		return r, err
	}
	if !slices.Contains(places(), r.client) {
		return r, fmt.Errorf("%q is not a client", r.client)
	}
	switch v := verdict(cells[2]); v {
	case refused, dropped, lost:
		r.verdict = v
		if cells[3] != "" {
			return r, fmt.Errorf("a row without an answer has a source")
		}
		return r, nil
	}
	list := strings.Fields(cells[2])
	if r.stays = strings.Contains(cells[2], "|"); r.stays {
		list = strings.Split(cells[2], "|")
	}
	for _, one := range list {
		name, share, found := strings.Cut(one, "*")
		if !found {
			share = "1"
		}
		if r.answers[name], err = strconv.Atoi(share); err != nil || !slices.Contains(servers(), name) {
			return r, fmt.Errorf("%q is not a server with a share", one)
		}
	}
	at, some := strings.CutPrefix(cells[3], "node at ")
	switch {
	case len(r.answers) == 0:
		return r, fmt.Errorf("no server answers")
	case some && slices.Contains(servers(), at):
		r.nodeAt = at
	case cells[3] == "node":
		r.nodeAt = "*"
	case cells[3] != "kept":
		return r, fmt.Errorf("%q is not a source", cells[3])
	}
	return r, nil
}

// destination returns the address that a row's clients connect to.
func (r row) destination() (netip.AddrPort, error) {
	known := map[string]string{
		"vip": "10.96.0.10:80", "vip6": "[fd00:96::10]:80", "second": "10.96.0.11:80", "node": "10.1.0.1:30080", "node6": "[fd01::1]:30080",
	}
	if at, ok := known[r.to]; ok {
		return netip.ParseAddrPort(at)
	}
	return netip.ParseAddrPort(r.to)
}

// TestTables reads the tables in flows.md. They must contain every host as a client, every verdict
// and every kind of destination.
func TestTables(t *testing.T) {
	clients, tos, verdicts := map[string]bool{}, map[string]bool{}, map[verdict]bool{}
	rows := 0
	for _, s := range readSections(t) {
		for _, r := range s.rows {
			rows++
			clients[r.client], tos[r.to], verdicts[r.verdict] = true, true, true
		}
	}
	for _, place := range places() {
		if place != "s2" && !clients[place] {
			t.Errorf("no row has the client %s", place)
		}
	}
	if len(verdicts) != 4 || !tos["vip"] || !tos["vip6"] || !tos["second"] || !tos["node"] || !tos["node6"] {
		t.Errorf("verdicts of %d rows = %v, want 4; destinations = %v, want vip, vip6, second, node and node6", rows, verdicts, tos)
	}
}
