"""The linear programs of OPTM and the families of mechanisms that they range over."""
