"""Whole-number arithmetic as a tool: an expression is read as a syntax tree, and never evaluated as code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def evaluate(expression: str) -> int:
    """Whole-number arithmetic with + - * and parentheses, without evaluating any code.

    Raises:
        ValueError, SyntaxError: if the expression holds anything else, or a number of more than 9 digits.
    """
    if len(expression) > 80:
        raise ValueError("expression longer than 80 characters")

    def walk(node: ast.AST) -> int:
        if isinstance(node, ast.Expression):
            return walk(node.body)
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**9:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -walk(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            value: int = _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
            if abs(value) >= 10**12:
                raise ValueError("result too large")
            return value
        raise ValueError(f"not arithmetic: {type(node).__name__}")

    return walk(ast.parse(expression.strip(), mode="eval"))
