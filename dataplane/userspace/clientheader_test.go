package userspace

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"vipd/balancer"
	"vipd/dataplane"
)

// reports is a backend's handler. It answers each line with the client and VIP addresses from the
// connection's PROXY header.
func reports(c net.Conn) {
	in := bufio.NewReader(c)
	h, err := proxyproto.Read(in)
	if err != nil {
		return
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprintf(c, "%s,%s %s", h.SourceAddr, h.DestinationAddr, line)
	}
}

func introduced(key string, backends ...netip.AddrPort) *balancer.Frontend {
	f := frontendAt(key, backends...)
	f.AcceptProxyProtocol = true
	f.Sources = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	return f
}

func headerOf(t testing.TB, version balancer.ProxyProtocol, client string, vip netip.AddrPort) string {
	t.Helper()
	text, err := header(version, netip.MustParseAddrPort(client), vip)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// greet opens a connection, and sends text as its first bytes.
func greet(t testing.TB, vip netip.AddrPort, text string) *client {
	t.Helper()
	c := mustConnect(t, vip)
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAcceptedHeader sends PROXY headers of both versions and both families, in one piece and as
// single bytes. The endpoint and the list of connections must show the client that the header
// names.
func TestAcceptedHeader(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		s := serveAt(t, net.JoinHostPort(host, "0"), reports)
		d := start(t, Options{})
		vip := netip.AddrPortFrom(netip.MustParseAddr(map[string]string{"127.0.0.1": "127.77.9.1", "::1": "::1"}[host]), 9100)
		f := introduced(vip.String(), s.addr)
		f.ProxyProtocol = balancer.ProxyProtocolV2
		d.apply(f)
		for _, version := range []balancer.ProxyProtocol{balancer.ProxyProtocolV1, balancer.ProxyProtocolV2} {
			for _, client := range []string{"203.0.113.7:4711", "[2001:db8::7]:4711"} {
				for _, size := range []int{1, 1000} {
					c := mustConnect(t, vip)
					for part := range slices.Chunk([]byte(headerOf(t, version, client, vip)), size) {
						if _, err := c.Write(part); err != nil {
							t.Fatal(err)
						}
					}
					got := c.mustAsk(t)
					if want := fmt.Sprintf("%s,", client); !strings.HasPrefix(got, want) {
						t.Errorf("VIP %s, header version %s, writes of %d bytes: client = %s, want %s", vip, version, size, got, want)
					}
					var listed []netip.AddrPort
					err := d.Connections(t.Context(), dataplane.ConnectionQuery{}, func(x *dataplane.Connection) error {
						listed = append(listed, x.Client)
						return nil
					})
					if want := netip.MustParseAddrPort(client); err != nil || len(listed) != 1 || listed[0] != want {
						t.Errorf("listed clients = %v, error = %v; want %s", listed, err, want)
					}
					_ = c.Close()
					eventually(t, "the end of the connection", func() error {
						d.frontends[f.Key].mu.Lock()
						defer d.frontends[f.Key].mu.Unlock()
						if n := d.frontends[f.Key].count; n > 0 {
							return fmt.Errorf("connections = %d, want 0", n)
						}
						return nil
					})
				}
			}
		}
	}
}

// TestHeaderWithoutClient sends PROXY headers that do not name a client. The endpoint must then see
// the sender as the client.
func TestHeaderWithoutClient(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", reports)
	d := start(t, Options{})
	f := introduced("127.77.9.2:9100", s.addr)
	f.ProxyProtocol = balancer.ProxyProtocolV1
	d.apply(f)
	for _, text := range []string{"PROXY UNKNOWN\r\n", "PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"} {
		c := greet(t, f.AddrPort(), text)
		if got, want := c.mustAsk(t), fmt.Sprintf("%s,%s", c.LocalAddr(), f.AddrPort()); got != want {
			t.Errorf("client after the header %q = %s, want %s", text, got, want)
		}
	}
}

// TestRefusedHeaders opens connections without a valid PROXY header, with a header that names a
// client outside source_ranges, and from an untrusted sender. Each connection must be reset, and
// none may reach the endpoint.
func TestRefusedHeaders(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("a"))
	d := start(t, Options{})
	f := introduced("127.77.9.3:9100", s.addr)
	f.Clients = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("127.0.0.0/8")}
	distrusted := introduced("127.77.9.3:9101", s.addr)
	distrusted.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	d.apply(f, distrusted)
	valid := headerOf(t, balancer.ProxyProtocolV1, "203.0.113.7:1", f.AddrPort())
	for _, c := range []struct {
		name, text string
		at         netip.AddrPort
	}{
		{"no header", "GET / HTTP/1.0\r\n\r\n", f.AddrPort()},
		{"another word", "PROXY5 TCP4 1.1.1.1 1.1.1.1 1 1\r\n", f.AddrPort()},
		{"bad address", "PROXY TCP4 1.1.1 1.1.1.1 1 1\r\n", f.AddrPort()},
		{"no carriage return", "PROXY TCP4 203.0.113.7 1.1.1.1 1 1\n", f.AddrPort()},
		{"endless line", "PROXY TCP4 " + strings.Repeat("1", 200), f.AddrPort()},
		{"version 3", "\r\n\r\n\x00\r\nQUIT\n\x31\x11\x00\x0c\x01\x01\x01\x01\x02\x02\x02\x02\x00\x01\x00\x02", f.AddrPort()},
		{"too long", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff", f.AddrPort()},
		{"client outside source_ranges", headerOf(t, balancer.ProxyProtocolV2, "198.51.100.7:1", f.AddrPort()), f.AddrPort()},
		{"sender that is not trusted", valid, distrusted.AddrPort()},
		{"the start of a header", valid[:20], f.AddrPort()},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := connect(c.at, "")
			if isReset(err) {
				return // an untrusted sender is refused before the dial returns
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = x.Close() })
			_, _ = x.Write([]byte(c.text)) // the connection may be reset between the two writes
			if c.name == "the start of a header" {
				_ = x.CloseWrite()
			}
			if _, err := x.Write([]byte("hello\n")); err == nil {
				wantReset(t, x)
			}
		})
	}
	if n := s.accepted.Load(); n > 0 {
		t.Errorf("connections that reached the endpoint = %d, want 0", n)
	}
	if name := greet(t, f.AddrPort(), valid).mustAsk(t); name != "a" {
		t.Errorf("client within source_ranges: server = %q, want %q", name, "a")
	}
}

// TestTrustEndsBeforeHeader stops trusting a sender before its PROXY header is complete. The
// connection must be reset, and must not reach the endpoint.
func TestTrustEndsBeforeHeader(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("a"))
	d := start(t, Options{})
	f := introduced("127.77.9.10:9100", s.addr)
	for name, edit := range map[string]func(*balancer.Frontend){
		"other networks": func(f *balancer.Frontend) { f.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} },
		"no headers":     func(f *balancer.Frontend) { f.AcceptProxyProtocol, f.Sources = false, nil },
	} {
		d.apply(f)
		text := headerOf(t, balancer.ProxyProtocolV1, "203.0.113.7:7", f.AddrPort())
		c := greet(t, f.AddrPort(), text[:20])
		eventually(t, "the connection", func() error {
			front := d.frontends[f.Key]
			front.mu.Lock()
			defer front.mu.Unlock()
			if front.count != 1 {
				return fmt.Errorf("connections of the frontend = %d, want 1", front.count)
			}
			return nil
		})
		d.apply(with(f, edit))
		if _, err := c.Write([]byte(text[20:])); err != nil {
			t.Fatal(err)
		}
		wantReset(t, c)
		eventually(t, "the end of the connection", func() error {
			front := d.frontends[f.Key]
			front.mu.Lock()
			defer front.mu.Unlock()
			if front.count != 0 || s.accepted.Load() != 0 {
				return fmt.Errorf("connections at the frontend = %d, at the endpoint = %d; want 0, 0 after %s", front.count, s.accepted.Load(), name)
			}
			return nil
		})
	}
}

// TestLongestHeader reads version 2 PROXY headers with a content of 4096 and 4097 bytes. Only the
// shorter header is valid, and the longer one must be refused before its content arrives.
func TestLongestHeader(t *testing.T) {
	const local = "\r\n\r\n\x00\r\nQUIT\n\x20\x00"
	longest, tooLong := local+"\x10\x00", local+"\x10\x01"
	if size, err := headerSize([]byte(longest)); size != headerV2+4096 || err != nil {
		t.Errorf("longest header: size = %d, error = %v; want %d", size, err, headerV2+4096)
	}
	sender := netip.MustParseAddrPort("192.0.2.1:1")
	if _, err := namedClient(append([]byte(longest), make([]byte, 4096)...), sender); err != nil {
		t.Errorf("longest header: error = %v, want nil", err)
	}
	if size, err := headerSize([]byte(tooLong)); err == nil {
		t.Errorf("longer header: size = %d, want an error", size)
	}
}

// TestSlowHeader sends only the start of a PROXY header. The connection must be reset soon after
// headerTime, and Close must not wait for another incomplete header.
func TestSlowHeader(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("a"))
	d := start(t, Options{})
	f := introduced("127.77.9.4:9100", s.addr)
	d.apply(f)
	begun := time.Now()
	wantReset(t, greet(t, f.AddrPort(), "PROXY TC"))
	if took := time.Since(begun); took < headerTime {
		t.Errorf("reset after %s, want at least %s", took, headerTime)
	}
	greet(t, f.AddrPort(), "PROXY TC") // Close must not wait for the rest of this header
}

// TestHeadersLimitAndKeepClients gives a service affinity and client limits. Both must apply to the
// clients that PROXY headers name, over IPv4 and IPv6.
func TestHeadersLimitAndKeepClients(t *testing.T) {
	d := start(t, Options{})
	f := introduced("127.77.9.5:9100", serveAt(t, "127.0.0.1:0", named("a")).addr, serveAt(t, "127.0.0.1:0", named("b")).addr)
	f.AffinityTimeout, f.AffinityPrefix = time.Hour, 24
	f.Limits = balancer.ClientLimits{SourceConnections: 3, SourcePrefix: 24}
	d.apply(f)
	for _, client := range []string{"203.0.113.7:1", "198.51.100.7:1", "[2001:db8::7]:1", "[2001:db8:0:1::7]:1"} {
		text := headerOf(t, balancer.ProxyProtocolV2, client, f.AddrPort())
		first := greet(t, f.AddrPort(), text).mustAsk(t)
		for range 2 {
			if again := greet(t, f.AddrPort(), text).mustAsk(t); again != first {
				t.Errorf("client %s: endpoint = %s, want %s as before", client, again, first)
			}
		}
		wantReset(t, greet(t, f.AddrPort(), text))
	}
}

// FuzzAcceptedHeader reads arbitrary data as a PROXY header. A complete header must not be larger
// than the data, and its size must not change if more data follows.
func FuzzAcceptedHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\nGET"), []byte("x"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x01\x01\x01\x01\x02\x02\x02\x02\x00\x01\x00\x02"), []byte("x"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"), []byte{})
	f.Fuzz(func(t *testing.T, data, more []byte) {
		size, err := headerSize(data)
		if err != nil || size == 0 {
			return
		}
		if again, err := headerSize(append(data[:len(data):len(data)], more...)); again != size || err != nil {
			t.Errorf("size with more data after the header = %d, error = %v; want %d", again, err, size)
		}
		if size > len(data) {
			return
		}
		sender := netip.MustParseAddrPort("192.0.2.1:1")
		if client, err := namedClient(data[:size], sender); err == nil && !client.IsValid() {
			t.Errorf("header %q: client = %s, want a valid address", data[:size], client)
		}
	})
}
