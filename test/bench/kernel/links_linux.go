package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// These are the links of a box. in is connected to the sender. out is connected to far, where the
// endpoints would be: no host is there, but the kernel counts arriving packets.
const (
	inLink  = "in"
	outLink = "out"
	farLink = "far"
)

// connect creates the links and routes of the box; sender is the link address of the sender's end.
// It returns the link far.
func connect(sender string, s spec) (netlink.Link, error) {
	senderMAC, err := net.ParseMAC(sender)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: outLink}, PeerName: farLink}); err != nil {
		return nil, fmt.Errorf("making a link to endpoints: %w", err)
	}
	links := map[string]netlink.Link{}
	for _, name := range []string{inLink, outLink, farLink} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("finding link %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("setting link %s up: %w", name, err)
		}
		links[name] = link
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+farLink+"/forwarding", []byte("0"), 0); err != nil {
		return nil, fmt.Errorf("keeping packets at link %s: %w", farLink, err)
	}
	if s.Through != "" {
		if err := dropArriving(farLink); err != nil {
			return nil, err
		}
	}
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	endpoints := network(endpointBase, endpointBits)
	toEndpoints := &net.IPNet{IP: endpoints.Addr().AsSlice(), Mask: net.CIDRMask(endpoints.Bits(), 32)}
	farMAC := links[farLink].Attrs().HardwareAddr
	err = errors.Join(
		router(links[inLink], "192.0.2.1/24", "192.0.2.2", senderMAC, all),
		router(links[outLink], "198.51.100.1/24", "198.51.100.2", farMAC, toEndpoints))
	if s.Through != "" { // direct routing needs endpoints without a router
		for i := range s.Endpoints {
			err = errors.Join(err, neighbour(links[outLink], endpoint(i).AsSlice(), farMAC))
		}
	}
	return links[farLink], err
}

// router sets a link's address, and adds a route to dst through a neighbour with a static entry.
func router(link netlink.Link, cidr, via string, mac net.HardwareAddr, dst *net.IPNet) error {
	ip, subnet, err := net.ParseCIDR(cidr)
	if err != nil {
		return err
	}
	gateway := net.ParseIP(via)
	err = netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: subnet.Mask}})
	if err == nil {
		err = neighbour(link, gateway, mac)
	}
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: gateway})
	}
	if err != nil {
		return fmt.Errorf("routing %s via %s on link %s: %w", dst, via, link.Attrs().Name, err)
	}
	return nil
}

// neighbour adds a host without a router: a static neighbour entry, and a route.
func neighbour(link netlink.Link, ip net.IP, mac net.HardwareAddr) error {
	host := &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}
	err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip, HardwareAddr: mac})
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: host, Scope: netlink.SCOPE_LINK})
	}
	return err
}

// awaitGone waits until the kernel has removed a box's link, which happens some time after the box
// has exited. This is the last step in removing the namespace, which keeps a core busy.
func awaitGone(name string) error {
	for range 6000 {
		if _, err := netlink.LinkByName(name); errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // poll interval
	}
	return fmt.Errorf("link %s has not gone: %w", name, unix.ETIMEDOUT)
}
