package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestAnsible changes a running vipd with examples/ansible. The playbook must keep a change only if
// the new file is valid and each service has an endpoint.
func TestAnsible(t *testing.T) {
	if !wait.Soaking() {
		t.Skip("make soak runs it: each of its four plays takes seconds")
	}
	lab.Need(t, "ansible-playbook")
	tree := program.New(t)
	role, err := filepath.Abs("../../examples/ansible/site.yml")
	if err != nil {
		t.Fatal(err)
	}
	tree.Echo(t, "a", "--http", "127.0.0.1:18081", "--tcp", "127.0.0.1:17001", "--udp", "127.0.0.1:17001")
	tree.Daemon(t, "quickstart")
	file, template := filepath.Join(tree.Top, "examples", "quickstart.toml"), filepath.Join(t.TempDir(), "vipd.toml.j2")
	read := func() string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	play := func(text string) (string, error) {
		if err := os.WriteFile(template, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		vars := fmt.Sprintf(`{"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3", "ansible_become": false,
			"vipd_template": %q, "vipd_file": %q, "vipd_service": "", "vipd_hosts": "localhost", "vipd_settle": 3, "vipctl": %q}`, template, file, filepath.Join(tree.Top, "bin", "vipctl"))
		cmd := exec.CommandContext(t.Context(), "ansible-playbook", "-i", "localhost,", "-e", vars, role)
		cmd.Dir = tree.Top
		home := t.TempDir()
		cmd.Env = append(os.Environ(), "HOME="+home, "ANSIBLE_LOCAL_TEMP="+home, "ANSIBLE_REMOTE_TEMP="+home, "ANSIBLE_NOCOLOR=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	service := func(more string) string {
		return "\n[services.extra]\nvips = [\"127.10.0.9\"]\nports = [{ port = 8099, target_port = 18081 }]\nendpoints = [{ address = \"127.0.0.1\" }]\n" + more
	}
	old := read()
	for _, c := range []struct {
		name, text, output string
		fails, kept        bool
	}{
		{"a new service", old + service(""), "changed=2 ", false, true},
		{"nothing", old + service(""), "changed=0 ", false, true},
		{"a misspelled field", old + service("schedular = \"lc\"\n"), `did you mean \"scheduler\"?`, true, false},
		{"a service without endpoints", old + service("[services.extra.health]\ntype = \"tcp\"\nport = 9\n"), "vipd serves its old configuration", true, false},
	} {
		before := read()
		out, err := play(c.text)
		if (err != nil) != c.fails || !strings.Contains(strings.ReplaceAll(out, `\\"`, `\"`), c.output) {
			t.Errorf("with %s: play = %v, want an error: %v, and %q in\n%s", c.name, err, c.fails, c.output, out)
		}
		want := before
		if c.kept {
			want = c.text
		}
		if got := read(); got != want {
			t.Errorf("file after a play with %s =\n%s\nwant\n%s", c.name, got, want)
		}
	}
	status, err := tree.Shell(t, "bin/vipctl --socket "+program.Socket("quickstart")+" status", wait.Patience)
	if err != nil || strings.Contains(status, "pending") {
		t.Errorf("vipctl status = %v and\n%s\nwant no pending change", err, status)
	}
}
