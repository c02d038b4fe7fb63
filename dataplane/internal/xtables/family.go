package xtables

// Variant is where the kernel keeps the rules.
type Variant string

// The variants: Auto follows the host.
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
