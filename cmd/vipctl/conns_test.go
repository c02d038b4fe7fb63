package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/test/wait"
)

// sampled counts the lines written to it, and measures this process's maximum heap size.
type sampled struct {
	lines, looked int
	most          uint64
	tail          string
}

func (s *sampled) Write(p []byte) (int, error) {
	if s.lines += strings.Count(string(p), "\n"); s.lines-s.looked >= 10_000 {
		s.looked, s.most = s.lines, max(s.most, kept())
	}
	if len(p) > 0 {
		s.tail = string(p[max(0, len(p)-200):])
	}
	return len(p), nil
}

func kept() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestConnsKeepsNoList prints 40,000 connections. vipctl must print them as they arrive, because a
// list of them would need at least 14 MB.
func TestConnsKeepsNoList(t *testing.T) {
	const most = 6 << 20
	crowd, formats := wait.Soak(40_000, 100_000), []string{cli.FormTable, cli.FormJSON}
	if wait.Soaking() {
		formats = append(formats, cli.FormWide) // the wide form is also a table
	}
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		begin, out := "[", json.NewEncoder(w)
		for i := range crowd {
			_, _ = w.Write([]byte(begin))
			begin = ","
			_ = out.Encode(api.Connection{
				Client:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), uint16(1024+i%60000)),
				Frontend: balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: balancer.TCP},
				Backend:  netip.MustParseAddrPort("192.168.1.11:8080"), State: "established", Service: "web",
			})
		}
		_, _ = w.Write([]byte("]"))
	})}
	go func() { _ = server.Serve(l) }() // returns after Close
	t.Cleanup(func() { _ = server.Close() })
	t.Setenv("VIPCTL_SOCKET", socket)
	last := fmt.Sprintf("10.%d.%d.%d:%d", (crowd-1)>>16, (crowd-1)>>8&255, (crowd-1)&255, 1024+(crowd-1)%60000)
	for _, format := range formats {
		out, errs, empty := &sampled{}, &strings.Builder{}, kept()
		w := cli.World{Stdout: out, Stderr: errs, Getenv: func(string) string { return "" }, Now: time.Now}
		if code := run(t.Context(), w, []string{"conns", "-o", format}); code != 0 || errs.Len() > 0 {
			t.Fatalf("format %s: exit code = %d, want 0: %s", format, code, errs)
		}
		if format == cli.FormJSON && out.lines < crowd*5 || format != cli.FormJSON && out.lines != crowd+1 || !strings.Contains(out.tail, last) {
			t.Errorf("format %s: lines = %d, last line = %q; want a line for each connection", format, out.lines, out.tail)
		}
		grown := out.most - min(out.most, empty)
		if t.Logf("%s: %d lines, %d KiB kept at most", format, out.lines, grown>>10); grown > most || out.looked == 0 {
			t.Errorf("format %s: memory growth = %d bytes, want at most 6 MiB", format, grown)
		}
	}
}
