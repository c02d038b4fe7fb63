package userspace

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// generationAttr is NFTA_GEN_ID.
const generationAttr = 1

// rulesGeneration returns the number of the last transaction that changed rules of nftables, and those of iptables-nft
// among them; 0: it can't be had.
func rulesGeneration() uint32 {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	if err != nil || len(answers) == 0 || len(answers[0]) < nl.SizeofNfgenmsg {
		return 0
	}
	attrs, err := nl.ParseRouteAttr(answers[0][nl.SizeofNfgenmsg:])
	if err != nil {
		return 0
	}
	for _, a := range attrs {
		if a.Attr.Type == generationAttr && len(a.Value) == 4 {
			return binary.BigEndian.Uint32(a.Value)
		}
	}
	return 0
}
