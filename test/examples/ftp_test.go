package examples

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vipd/examples/process"
	"vipd/test/lab"
	"vipd/test/wait"
)

// ftp serves a file from two FTP servers. Each client must always get the file from the same
// server, with EPSV and with PASV, and both servers must have clients.
func ftp(t *testing.T, e example) {
	lab.Need(t, "vsftpd")
	for name, address := range map[string]string{"a": "127.10.9.11", "b": "127.10.9.12"} {
		serveFTP(t, e, name, address)
	}
	e.Daemon(t, e.name)
	// A client that transfers no file makes the schedulers of both ports choose different servers.
	c, err := net.Dial("tcp", "127.10.9.1:2121")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	download := func(options string) string {
		out, err := e.Shell(t, "curl -sS -m 60 "+options+" ftp://127.10.9.1:2121/name", wait.Patience)
		if err != nil || out != "a" && out != "b" {
			t.Fatalf("curl %s = %q, %v, want a server's file", options, out, err)
		}
		return out
	}
	servers := map[string]int{}
	for client := 2; client < 10 || len(servers) < 2 && client < 50; client++ {
		from := fmt.Sprintf("--interface 127.0.0.%d", client)
		first := download(from)
		servers[first]++
		for _, options := range []string{" --disable-epsv --no-ftp-skip-pasv-ip", ""} {
			if again := download(from + options); again != first {
				t.Errorf("server of client 127.0.0.%d = %s after %s, want the same server each time", client, again, first)
			}
		}
	}
	if len(servers) != 2 {
		t.Errorf("clients of each server = %v, want clients of a and b", servers)
	}
	e.say(t, "curl ftp:")
	e.say(t, "curl --interface 127.0.0.2")
}

// serveFTP starts vsftpd at an address, with the settings in the example's comments. It serves a
// file "name" that contains the server's name.
func serveFTP(t *testing.T, e example, name, address string) {
	t.Helper()
	dir := t.TempDir()
	settings := []string{
		"listen=YES", "background=NO", "listen_port=2121", "listen_address=" + address, "anonymous_enable=YES", "no_anon_password=YES",
		"anon_root=" + dir, "run_as_launching_user=YES", "seccomp_sandbox=NO", "isolate=NO", "isolate_network=NO",
	}
	for _, line := range e.commands(t) {
		if strings.HasPrefix(line, "pasv_") {
			settings = append(settings, line)
		}
	}
	file := filepath.Join(t.TempDir(), "vsftpd.conf")
	if err := os.WriteFile(file, []byte(strings.Join(settings, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "name"), []byte(name), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(nil, exec.Command("vsftpd", file))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	wait.For(t, wait.Patience, "vsftpd at "+address, func() bool {
		c, err := net.Dial("tcp", address+":2121")
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}
