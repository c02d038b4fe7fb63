package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/cmd/internal/cli"
)

// TestMistakes checks the error messages for mistakes: incorrect usage, invalid values for each
// verb and setting, and files that can't be converted. The messages must equal testdata/mistakes.
// The flag -update rewrites these files.
func TestMistakes(t *testing.T) {
	t.Chdir(t.TempDir()) // files that the command lines name must not exist
	for name, texts := range map[string]string{"use": wrongUses(t), "settings": wrongSettings(t), "places": wrongPlaces(t), "convert": wrongOrigins(t)} {
		golden := filepath.Join(sources(t), "testdata", "mistakes", name+".txt")
		if *update {
			if err := os.WriteFile(golden, []byte(texts), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), texts); d != "" {
			t.Errorf("%s (-want +got):\n%s", golden, d)
		}
	}
}

// TestNoBareErrors reads the golden files of all vipctl tests. No line may contain the number or
// name of a kernel error.
func TestNoBareErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("files = %d, error = %v; want the golden files", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if bare := bareError.FindString(line); bare != "" {
				t.Errorf("%s: line %q contains the kernel's %s, want a sentence", file, line, bare)
			}
		}
	}
}

// TestSystemErrorsHaveAWayOut makes verbs fail with system errors that users can cause. Each
// message must contain the path, the cause and the remedy.
func TestSystemErrorsHaveAWayOut(t *testing.T) {
	s := newSession(t)
	lines := []string{"--help", "status --help", "version", "completion bash", "check ok.toml", "plan ok.toml --mode nftables", "status", "get services", "get endpoints -o json",
		"describe service web", "events", "conns"}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("ok.toml", []byte(oneService), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, e := range []syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOENT, syscall.ENOTDIR,
		syscall.EISDIR, syscall.EEXIST, syscall.ENAMETOOLONG, syscall.ELOOP,
	} {
		place := &fs.PathError{Op: "open", Path: "/the/place", Err: e}
		for _, err := range []error{
			place, fmt.Errorf("doing it: %w", place), errors.Join(place, errors.New("more")), &os.LinkError{Op: "rename", Old: "/the/place", New: "x", Err: e},
			&net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: "/the/place"}, Err: os.NewSyscallError("connect", e)},
		} {
			s.wayOut(t, "an error", e, func() {
				fails := &cli.Verb{Name: "fail", Run: func(*cli.Call) error { return err }}
				cli.Run(t.Context(), s.World, []cli.Group{{Verbs: []*cli.Verb{fails}}}, []string{"fail"})
			})
		}
		for _, line := range lines {
			s.Stdout = failing{place}
			s.wayOut(t, line, e, func() { s.run(t.Context(), strings.Fields(line)...) })
		}
	}
}

// failing is a writer whose writes fail with err.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// wayOut calls the function do, which must print the path, the cause and the remedy for the error
// e.
func (s *session) wayOut(t *testing.T, what string, e syscall.Errno, do func()) {
	t.Helper()
	s.err = &notice{}
	s.Stderr = s.err
	do()
	text := s.err.String()
	_, way, _ := strings.Cut(text, e.Error())
	if !strings.HasPrefix(text, "vipctl: ") || !strings.Contains(text, "/the/place") || !strings.Contains(way, "; ") || bareError.MatchString(text) {
		t.Errorf("%s: %v: text = %q, want the path, the cause and the remedy in it", what, e, text)
	}
}

// bareError matches names and numbers of kernel errors, which users don't know.
var bareError = regexp.MustCompile(`\bE(INVAL|NOENT|EXIST|PERM|ACCES|BUSY|OPNOTSUPP|AFNOSUPPORT|ADDR[A-Z]+|CONN[A-Z]+|NOBUFS|NOMEM)\b|errno|netlink|error -?\d+|exit status \d+`)

const oneService = "[services.web]\nvips = [\"10.96.0.10\"]\nports = [{ port = 80 }]\nendpoints = [{ address = \"192.168.1.11\" }]\n"

// sources returns the directory of this package, even after a test has changed the working
// directory.
var sources = func() func(t *testing.T) string {
	folder, err := os.Getwd()
	return func(t *testing.T) string {
		if err != nil {
			t.Fatal(err)
		}
		return folder
	}
}()

// record runs a command line, and appends the line, its output and its exit code to b.
func record(t *testing.T, b *strings.Builder, args ...string) {
	t.Helper()
	var out, errs bytes.Buffer
	w := cli.World{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, Now: time.Now, Root: true}
	code := run(t.Context(), w, args)
	if code == cli.ExitDone {
		return // a successful command line is not a mistake
	}
	fmt.Fprintf(b, "$ vipctl %s  # exits with %d\n%s", strings.Join(args, " "), code, errs.String())
	if errs.Len() == 0 {
		b.WriteString(out.String())
	}
}

// wrongUses returns the messages for incorrect usage of each verb.
func wrongUses(t *testing.T) string {
	t.Setenv("VIPCTL_SOCKET", "nowhere.sock")
	var b strings.Builder
	for _, v := range allVerbs() {
		if v.Hidden() || v.Name == "version" || v.Name == "cleanup" || v.Name == "doctor" {
			continue // these accept anything, or examine the host
		}
		record(t, &b, v.Name, "--nonsense")
		if v.MaxArgs != cli.WithCommand {
			record(t, &b, v.Name)
			record(t, &b, v.Name, "a", "b", "c", "d", "e")
		}
		if len(v.Formats) > 0 {
			record(t, &b, v.Name, "a", "-o", "nonsense")
		}
		for _, f := range v.Flags {
			name := "--" + f.Names()[0]
			switch f.(type) {
			case *cli.BoolFlag:
				record(t, &b, v.Name, "a", name+"=nonsense")
			case *cli.StringFlag:
			default:
				record(t, &b, v.Name, "a", name, "nonsense")
			}
		}
		if v.Fleet {
			record(t, &b, v.Name, "a", "b", "--etcd", "nonsense")
		}
	}
	for _, line := range combinations {
		record(t, &b, strings.Fields(line)...)
	}
	return b.String()
}

// combinations lists invalid command lines whose words are valid individually.
var combinations = []string{
	"conns --follow --kill", "conns --follow --state established", "conns --yes", "conns web --service dns", "conns --client here", "conns --kill", "conns web --kill",
	"describe vip 10.96.0.10 -o toml", "diff --prune", "diff -f a.toml -f b.toml", "explain here 10.96.0.10:80", "get services --down",
	"apply -f - -f -", "apply -f services.yaml", "history Web --etcd http://127.0.0.1:1", "node set n1", "ownership rekeyed", "vip move", "vip move here --to n1",
	"node fence n1", "get services -o jsonpath={end}", "get services -o jsonpath={x!}",
	"get services -o jsonpath={'x}", "register web 10.0.0.1 --timeout=-1s -- true", "register web 10.0.0.1 --kill-after=-1s -- true", "convert --from apache x",
	"register web 224.0.0.1:80 --etcd http://127.0.0.1:1", "register web 10.0.0.1 --max-connections 9999999999 --etcd http://127.0.0.1:1",
	"register web 10.0.0.1 --etcd http://127.0.0.1:1 --zone " + strings.Repeat("long", 64),
	`get services -o jsonpath={"x\y"}`, "debug bundle --file nowhere/x",
	"get pools --etcd http://ana:x@127.0.0.1:1", "get pools --etcd http://127.0.0.1:1/x", "get pools --etcd http://127.0.0.1:1,https://127.0.0.1:1",
	"status --socket " + strings.Repeat("long", 30), "explain 10.0.0.1 web", "explain 10.0.0.1 10.96.0.10:80/icmp",
	"drain web 10.0.0.1 --etcd https://127.0.0.1:1 --ca-file nowhere", "weight web 10.0.0.1 70000", "drain --node n1 web", "drain web 10.0.0.1 --expires=-1s",
}

// wrongPlaces returns the messages for files, directories and sockets that a verb can't use.
func wrongPlaces(t *testing.T) string {
	t.Setenv("VIPCTL_SOCKET", "nowhere.sock")
	if err := errors.Join(os.Mkdir("folder", 0o755), os.WriteFile("file", []byte("no TOML"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, place := range []string{"nowhere", "folder", "file", "file/x"} {
		for _, line := range []string{
			"check", "plan --mode nftables", "diff -f", "apply -f", "convert --from haproxy", "get services --socket", "get pools --config",
			"get pools --etcd https://127.0.0.1:1 --ca-file", "debug bundle --file",
		} {
			record(t, &b, append(strings.Fields(line), place)...)
		}
	}
	record(t, &b, "get", "pools", "--etcd", "https://127.0.0.1:1", "--ca-file", "absent", "--config", "file")
	t.Setenv("VIPCTL_SOCKET", "")
	record(t, &b, "status", "--config", "absent")
	return b.String()
}

// wrongOrigins returns the messages for other programs' configurations that can't be converted.
func wrongOrigins(t *testing.T) string {
	var b strings.Builder
	try := func(format, text string) {
		if err := os.WriteFile("origin", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%.80q\n", text)
		record(t, &b, "convert", "--from", format, "origin")
	}
	origins := map[string][]string{
		"haproxy": {
			"server a 10.0.0.1", "defaults from x", "listen", "listen web 'x", "frontend web\nbind 10.0.0.1:80\ndefault_backend x",
			"listen web\nbind 10.0.0.1:0\nserver a 10.0.0.2", "listen web\nbind 10.0.0.1:90-80\nserver a 10.0.0.2",
			"listen web\nbind name:80\nserver a 10.0.0.2",
		},
		"ipvsadm": {"-L", "-t 10.0.0.1:80", "-A -t 10.0.0.1:80 --fast", "-A -t www:http", "-a -t 10.0.0.1:80 -r 10.0.0.2:80"},
		"keepalived": {
			strings.Repeat("a {\n", 200), "{\n}", "}", "a {", "a \"b\n", "virtual_server group web {\n}", "virtual_server web 80 {\n}", "virtual_server 10.0.0.1 x {\n}",
			"virtual_server_group web {\n10.0.0.9-1 80\n}\nvirtual_server group web {\n}", "virtual_server_group web {\n10.0.0.0/8 80\n}\nvirtual_server group web {\n}",
		},
		"nginx":     {"stream { server { listen 'x", "stream {", "\xff", "#" + strings.Repeat("x", 16<<20)},
		"gobetween": {"[servers", "[servers.web]\nbind = 1"},
	}
	for _, format := range slices.Sorted(maps.Keys(origins)) {
		for _, text := range origins[format] {
			try(format, text)
		}
	}
	return b.String()
}

// wrongSettings returns the messages for wrong values for each setting in the default
// configuration, and for each field in vipd.toml(5).
func wrongSettings(t *testing.T) string {
	found := regexp.MustCompile(`^wrong\.toml:\d+: (.*)`)
	var b strings.Builder
	try := func(what, format string) {
		for _, value := range []string{`"?"`, `-1`, `["?"]`} {
			if err := os.WriteFile("wrong.toml", []byte(fmt.Sprintf(format, value)), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			w := cli.World{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, Now: time.Now, Root: true}
			run(t.Context(), w, []string{"check", "wrong.toml"})
			for line := range strings.Lines(out.String() + errs.String()) {
				if m := found.FindStringSubmatch(line); m != nil && !strings.HasSuffix(line, "(a warning)\n") { // warnings depend on this host
					fmt.Fprintf(&b, "%s = %s  # %s\n", what, value, m[1])
				}
			}
		}
	}
	section := ""
	setting := regexp.MustCompile(`^#?(\w+) = `)
	for line := range strings.Lines(readSource(t, "systemd/vipd.toml")) {
		if heading, _, _ := strings.Cut(line, "#"); strings.HasPrefix(heading, "[") {
			section = strings.TrimSpace(heading) + "\n"
		}
		if m := setting.FindStringSubmatch(line); m != nil {
			try(strings.TrimSpace(strings.TrimSpace(section)+" "+m[1]), section+m[1]+" = %s\n")
		}
		if strings.HasPrefix(line, "# A service.") {
			break
		}
	}
	places := map[string]string{
		"A service":     oneService + "%s = %%s\n",
		"ports":         "[services.web]\nvips = [\"10.96.0.10\"]\nports = [{ port = 80, %s = %%s }]\n",
		"endpoints":     "[services.web]\nvips = [\"10.96.0.10\"]\nports = [{ port = 80 }]\nendpoints = [{ address = \"192.168.1.11\", %s = %%s }]\n",
		"Health checks": oneService + "[services.web.health]\ntype = \"http\"\n%s = %%s\n",
		"An address":    oneService + "[vips.\"10.96.0.10\"]\n%s = %%s\n",
	}
	place := ""
	field := regexp.MustCompile("`(\\w+)`")
	for line := range strings.Lines(readSource(t, "docs/reference.md")) {
		if marks, title, ok := strings.Cut(strings.TrimSpace(line), " "); ok && marks != "" && strings.Trim(marks, "#") == "" {
			place = title
		}
		cells := strings.Split(line, "|")
		if places[place] == "" || len(cells) < 3 {
			continue
		}
		for _, m := range field.FindAllStringSubmatch(cells[1], -1) {
			format := places[place]
			if required := regexp.MustCompile(`(?m)^` + m[1] + ` = .*\n|\b` + m[1] + ` = [^,}]*, `); strings.Contains(format, m[1]+" = ") {
				format = required.ReplaceAllString(format, "") // a key may occur only once
			}
			try(place+": "+m[1], fmt.Sprintf(format, m[1]))
		}
	}
	return b.String()
}

func readSource(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sources(t), "..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
