package userspace

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"vipd/balancer"
)

func TestProxyHeader(t *testing.T) {
	for _, version := range []balancer.ProxyProtocol{balancer.ProxyProtocolV1, balancer.ProxyProtocolV2} {
		for _, host := range []string{"127.0.0.1", "::1"} {
			t.Run(fmt.Sprintf("%s from %s", version, host), func(t *testing.T) {
				s := serveAt(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
					in := bufio.NewReader(c)
					h, err := proxyproto.Read(in)
					if err != nil {
						t.Errorf("reading the header: %v", err)
						return
					}
					line, _ := in.ReadString('\n')
					fmt.Fprintf(c, "%s,%s,%d %s", h.SourceAddr, h.DestinationAddr, h.Version, line)
				})
				dead := serveAt(t, net.JoinHostPort(host, "0"), nil)
				dead.stop()
				d := start(t, Options{})
				vip := netip.AddrPortFrom(netip.MustParseAddr(map[string]string{"127.0.0.1": "127.77.5.1", "::1": "::1"}[host]), 9000)
				f := frontendAt(vip.String(), s.addr, dead.addr)
				f.ProxyProtocol = version
				d.apply(f)
				for range 4 {
					c := mustConnect(t, vip)
					want := fmt.Sprintf("%s,%s,%s", c.LocalAddr(), vip, string(version[1]))
					if got := c.mustAsk(t); got != want {
						t.Errorf("header = %s, want %s", got, want)
					}
				}
			})
		}
	}
}

func FuzzHeader(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, uint16(1), []byte{10, 0, 0, 2}, uint16(80), false)
	f.Add(bytes.Repeat([]byte{0xfd}, 16), uint16(65535), make([]byte, 16), uint16(0), true)
	f.Fuzz(func(t *testing.T, client []byte, clientPort uint16, vip []byte, vipPort uint16, v2 bool) {
		from, ok1 := netip.AddrFromSlice(client)
		to, ok2 := netip.AddrFromSlice(vip)
		from, to = from.Unmap(), to.Unmap()
		if !ok1 || !ok2 {
			return
		}
		version := balancer.ProxyProtocolV1
		if v2 {
			version = balancer.ProxyProtocolV2
		}
		source, destination := netip.AddrPortFrom(from, clientPort), netip.AddrPortFrom(to, vipPort)
		text, err := header(version, source, destination)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(bytes.NewReader(append(text, "rest"...)))
		h, err := proxyproto.Read(in)
		if err != nil {
			t.Fatalf("reading %q: error = %v, want nil", text, err)
		}
		if got := h.SourceAddr.(*net.TCPAddr).AddrPort(); netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != source {
			t.Errorf("client = %s, want %s", got, source)
		}
		if got := h.DestinationAddr.(*net.TCPAddr).AddrPort(); netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != destination {
			t.Errorf("VIP = %s, want %s", got, destination)
		}
		if rest, _ := in.ReadString(0); rest != "rest" {
			t.Errorf("data after the header = %q, want %q", rest, "rest")
		}
	})
}

// TestFlowHeader sends datagrams through a frontend that adds version 2 PROXY headers. Only
// datagrams before the first reply must have a header. If an endpoint refuses a flow, datagrams to
// the next endpoint must again have a header.
func TestFlowHeader(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		dead, stop := startUDPServer(t, net.JoinHostPort(host, "0"), "dead")
		stop()
		at := udpServer(t, net.JoinHostPort(host, "0"), "a")
		d := start(t, Options{})
		vip := netip.AddrPortFrom(netip.MustParseAddr(map[string]string{"127.0.0.1": "127.77.5.2", "::1": "::1"}[host]), 9002)
		f := frontendAt(vip.String()+"/udp", at, dead)
		f.ProxyProtocol = balancer.ProxyProtocolV2
		d.apply(f)
		for range 4 {
			c := udpClient(t, vip)
			want, err := flowHeader(c.LocalAddr().(*net.UDPAddr).AddrPort(), vip)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			eventually(t, "an answer", func() (err error) { // the first datagram may be lost because an endpoint refuses it
				got, err = exchange(c, "one")
				return err
			})
			h, err := proxyproto.Read(bufio.NewReader(strings.NewReader(got)))
			if err != nil || h.SourceAddr.String() != c.LocalAddr().String() || h.DestinationAddr.String() != vip.String() || h.TransportProtocol.IsStream() {
				t.Errorf("header in %q = %v, error = %v; want client %s, VIP %s and UDP", got, h, err, c.LocalAddr(), vip)
			}
			if got != string(want)+"one" {
				t.Errorf("first datagram = %q, want %q", got, string(want)+"one")
			}
			if got, err := exchange(c, "two"); err != nil || got != "two" {
				t.Errorf("second datagram = %q, error = %v; want %q", got, err, "two")
			}
		}
	}
}

// exchange sends a datagram through a frontend, and returns the datagram that the endpoint
// received.
func exchange(c *net.UDPConn, text string) (string, error) {
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	buf := make([]byte, datagram)
	n, err := c.Read(buf)
	_, got, _ := strings.Cut(string(buf[:n]), " ")
	return got, err
}
