package examples

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/program"
)

// TestContainer runs vipd as in examples/docker, with the addresses in compose.yaml. vipd must
// serve as the user nobody, without any capability, in a root directory that contains only the
// programs.
func TestContainer(t *testing.T) {
	lab.Require(t)
	l := lab.New(t)
	bridge := l.Bridge("vips")
	host, client := l.Add("vipd"), l.Add("client")
	bridge.Join(host, "172.30.0.10/24")
	bridge.Join(client, "172.30.0.1/24")
	bin := filepath.Join(program.New(t).Top, "bin")
	for name, at := range map[string]string{"web1": "172.30.0.11", "web2": "172.30.0.12"} {
		server := l.Add(name)
		bridge.Join(server, at+"/24")
		start(t, exec.Command(filepath.Join(bin, "echo"), "--name", name, "--http", at+":8080"), server)
	}
	host.Sysctl("net.ipv4.ip_unprivileged_port_start", "0")

	root := image(t, bin)
	inside := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
		return cmd
	}
	start(t, inside("/usr/bin/vipd"), host)
	web := http.Client{Transport: &http.Transport{DialContext: client.Dial, DisableKeepAlives: true}}
	seen := map[string]bool{}
	lab.Eventually(t, 20*time.Second, "both servers to answer", func() error {
		answer, err := web.Get("http://172.30.0.10")
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		name, _, _ := strings.Cut(string(text), " ")
		if seen[name] = err == nil; !seen["web1"] || !seen["web2"] {
			return fmt.Errorf("servers that have answered = %v, error = %v", seen, err)
		}
		return nil
	})
	ask := inside("/usr/bin/vipctl", "status")
	if output, err := ask.CombinedOutput(); err != nil {
		t.Errorf("vipctl status in the container: %v\n%s", err, output)
	}
}

func start(t *testing.T, cmd *exec.Cmd, on *lab.NS) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := on.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s printed:\n%s", cmd, out.String())
		}
	})
}

// image creates a root directory with the same content as the Dockerfile's image.
func image(t *testing.T, bin string) string {
	t.Helper()
	root := t.TempDir()
	for parent := root; parent != "/" && parent != os.TempDir(); parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{
		filepath.Join(bin, "vipd"): "usr/bin/vipd", filepath.Join(bin, "vipctl"): "usr/bin/vipctl", "../../examples/docker/vipd.toml": "etc/vipd/vipd.toml",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{"run/vipd", "var/lib/vipd"} {
		folder = filepath.Join(root, folder)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(folder, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
