package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// proxy is a measured path to the backend. It is a proxy's process, or a direct connection.
type proxy struct {
	name    string
	address string
	command *exec.Cmd
}

// startAll starts the installed proxies, and returns the names of missing proxies. other is another
// build of vipd for comparison, or "".
func startAll(ctx context.Context, dir, vipd, other, backend string) (proxies []*proxy, missing []string, err error) {
	proxies = append(proxies, &proxy{name: "direct", address: backend})
	type candidate struct {
		name, tool, address string
		config              string
		args                func(file string) []string
	}
	candidates := []candidate{
		{"vipd", vipd, "127.10.9.1:7001", vipdConfig(dir, "127.10.9.1", backend), func(f string) []string { return []string{"--config", f} }},
		{"HAProxy", "haproxy", "127.0.0.1:17102", haproxyConfig(backend), func(f string) []string { return []string{"-db", "-f", f} }},
		{"nginx", "nginx", "127.0.0.1:17103", nginxConfig(dir, backend), func(f string) []string { return []string{"-c", f, "-p", dir} }},
	}
	if other != "" {
		config := vipdConfig(filepath.Join(dir, "other"), "127.10.9.2", backend)
		candidates = append(candidates, candidate{"other vipd", other, "127.10.9.2:7001", config, candidates[0].args})
	}
	for _, one := range candidates {
		path, err := exec.LookPath(one.tool)
		if err != nil {
			missing = append(missing, one.name+" ("+err.Error()+")")
			continue
		}
		file := filepath.Join(dir, one.name+".conf")
		if err := os.WriteFile(file, []byte(one.config), 0o644); err != nil {
			return proxies, missing, err
		}
		p := &proxy{name: one.name, address: one.address, command: unprivileged(path, one.args(file))}
		log, err := os.Create(filepath.Join(dir, one.name+".log"))
		if err != nil {
			return proxies, missing, err
		}
		p.command.Stdout, p.command.Stderr = log, log
		if err := p.command.Start(); err != nil {
			return proxies, missing, fmt.Errorf("starting %s: %w", one.name, err)
		}
		if err := p.await(ctx); err != nil {
			text, _ := os.ReadFile(log.Name())
			p.stop()
			if one.name == "vipd" {
				return proxies, missing, fmt.Errorf("starting %s: %w: %s", one.name, err, text)
			}
			missing = append(missing, fmt.Sprintf("%s (%s)", one.name, strings.TrimSpace(string(text))))
			continue
		}
		proxies = append(proxies, p)
	}
	return proxies, missing, nil
}

// unprivileged returns a command for a program that must not change the network. Two vipds that are
// permitted to change it refuse to share a network namespace.
func unprivileged(path string, args []string) *exec.Cmd {
	if os.Geteuid() == 0 {
		path, args = "setpriv", append([]string{"--bounding-set", "-net_admin", path}, args...)
	}
	return exec.Command(path, args...)
}

func vipdConfig(dir, vip, backend string) string {
	host, port, _ := net.SplitHostPort(backend)
	return fmt.Sprintf(`mode = "userspace"
state_dir = %[1]q
run_dir = %[1]q
[api]
socket = %[2]q
http = ""
[userspace]
intercept = "bind"
[services.bench]
vips = [%[5]q]
ports = [{ port = 7001 }]
endpoints = [{ address = %[3]q, port = %[4]s }]
`, dir, filepath.Join(dir, "vipd.sock"), host, port, vip)
}

func haproxyConfig(backend string) string {
	return fmt.Sprintf(`global
	maxconn 4000
defaults
	mode tcp
	option splice-request
	option splice-response
	timeout connect 5s
	timeout client 1m
	timeout server 1m
listen bench
	bind 127.0.0.1:17102
	server one %s
`, backend)
}

func nginxConfig(dir, backend string) string {
	return fmt.Sprintf(`load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
worker_processes 2;
pid %[1]s/nginx.pid;
error_log %[1]s/nginx-error.log;
events { worker_connections 20000; }
stream {
	server { listen 127.0.0.1:17103; proxy_pass %[2]s; proxy_half_close on; }
}
`, dir, backend)
}

// await waits until the proxy accepts connections.
func (p *proxy) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		c, err := dial(ctx, p.address)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not accept: %w", p.address, err)
		}
		time.Sleep(20 * time.Millisecond) // interval of polls
	}
}

func (p *proxy) stop() {
	if p.command != nil {
		_ = p.command.Process.Signal(syscall.SIGTERM)
		_ = p.command.Wait()
	}
}

// during runs work, and returns its duration and the proxy's CPU time.
func (p *proxy) during(work func() error) (cpu, took time.Duration, err error) {
	before, err := p.cpu()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := work(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	after, err := p.cpu()
	return after - before, took, err
}

// tick is the unit of CPU times in /proc (USER_HZ), the same on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpu returns the CPU time of the proxy and its children, from proc_pid_stat(5).
func (p *proxy) cpu() (time.Duration, error) {
	if p.command == nil {
		return 0, nil
	}
	pids := []string{strconv.Itoa(p.command.Process.Pid)}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%s/task/%s/children", pids[0], pids[0]))
	if err != nil {
		return 0, fmt.Errorf("finding the processes of %s: %w", p.name, err)
	}
	var sum time.Duration
	for _, pid := range append(pids, strings.Fields(string(children))...) {
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return 0, fmt.Errorf("reading the CPU time of %s: %w", p.name, err)
		}
		_, rest, _ := strings.Cut(string(text), ") ") // the program's name in parentheses may contain spaces
		fields := strings.Fields(rest)
		for _, f := range fields[11:13] { // utime and stime
			ticks, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("reading the CPU time of %s: %w", p.name, err)
			}
			sum += time.Duration(ticks) * tick
		}
	}
	return sum, nil
}
