package xtables

// Variant is a variant of iptables, which determines where the kernel keeps the rules.
type Variant string

// These are the variants. Auto means the variant that the host uses.
const (
	Auto   Variant = "auto"
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

func (v Variant) other() Variant {
	if v == NFT {
		return Legacy
	}
	return NFT
}
