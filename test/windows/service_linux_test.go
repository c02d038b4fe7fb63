package windows

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vipd/test/wait"
)

// wine prepares a Windows program to run under wine, with the test's prefix.
func wine(t *testing.T, prefix string, args ...string) *exec.Cmd {
	t.Helper()
	script, err := filepath.Abs("wine")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script, args...)
	cmd.Env = append(os.Environ(), "WINEPREFIX="+prefix)
	return cmd
}

// TestService installs vipd.exe as a service with sc.exe. The service must serve in userspace mode,
// exit when it is stopped, and report the exit code of a failed start. In ipvs mode, vipd.exe must
// report that the system lacks IPVS.
func TestService(t *testing.T) {
	if !wait.Soaking() { // building everything for Windows takes as long as the slowest tests
		t.Skip("make test-windows and make soak run it; make lint checks that it compiles")
	}
	for _, tool := range []string{"wine", "x86_64-w64-mingw32-ld"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs wine and binutils-mingw-w64-x86-64 (make test-windows)")
		}
	}
	folder, prefix := t.TempDir(), t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", folder+"/", "vipd/cmd/vipd")
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building for Windows: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = wine(t, prefix, "end").Run() })
	run := func(args ...string) string {
		t.Helper()
		out, err := wine(t, prefix, args...).CombinedOutput()
		if err != nil {
			t.Logf("wine %s: %v", strings.Join(args, " "), err)
		}
		return strings.ReplaceAll(string(out), "\r", "")
	}

	endpoint, web, vip := listen(t, "127.0.0.1:0"), free(t), free(t)
	go func() { _ = http.Serve(endpoint, http.HandlerFunc(hello)) }()
	config := filepath.Join(folder, "vipd.toml")
	write(t, config, fmt.Sprintf(`mode = "userspace"
run_dir = "run"
state_dir = "state"
[api]
socket = "vipd.sock"
http = "%s"
[services.web]
vips = ["127.88.3.1"]
ports = [{ port = %d, target_port = %d }]
endpoints = [{ address = "127.0.0.1" }]
`, web, vip.Port, endpoint.Addr().(*net.TCPAddr).Port))
	program := filepath.Join(folder, "vipd.exe")
	run("sc", "create", "vipd", "binPath=", "Z:"+program+" service --config Z:"+config)
	run("net", "start", "vipd")
	wait.For(t, wait.Patience, "the VIP answers", func() bool { return get("http://"+vip.String()) == "hello" })
	wait.For(t, wait.Patience, "vipd is ready", func() bool { return strings.Contains(get("http://"+web.String()+"/readyz"), `"ok":true`) })
	if state := run("sc", "query", "vipd"); !strings.Contains(state, "RUNNING") {
		t.Errorf("while it serves: state = %s, want RUNNING", state)
	}
	run("net", "stop", "vipd")
	if state := run("sc", "query", "vipd"); !strings.Contains(state, "STOPPED") || !strings.Contains(state, "WIN32_EXIT_CODE    : 0 ") {
		t.Errorf("after the stop: state = %s, want STOPPED with exit code 0", state)
	}
	if get("http://"+vip.String()) != "" {
		t.Error("VIP still answers after the stop")
	}

	write(t, config, "mode = \"ipvs\"\nstrict_mode = true\n")
	if out := run(program, "--config", config); !strings.Contains(out, "not on this system") {
		t.Errorf("output in ipvs mode = %s, want \"not on this system\"", out)
	}
	write(t, config, "mode = \"nonsense\"\n")
	run("net", "start", "vipd")
	wait.For(t, wait.Patience, "the service manager has exit code 78", func() bool {
		return strings.Contains(run("sc", "query", "vipd"), "SERVICE_EXIT_CODE  : 78 ")
	})
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

func listen(t *testing.T, at string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// free returns an address without a listener, on its own loopback host that no other test uses.
func free(t *testing.T) *net.TCPAddr {
	t.Helper()
	l := listen(t, "127.88.3.1:0")
	_ = l.Close()
	return l.Addr().(*net.TCPAddr)
}

// get returns the text of a page, or "" without an answer.
func get(url string) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer func() { _ = r.Body.Close() }()
	text, _ := io.ReadAll(r.Body)
	return string(text)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
